"""Build src/kvproof/model/data/catalog.json from a folder of published config.json files.

    python scripts/build_catalog.py ../shared/data/configs

Keeps the facts that geometry, parameters and quantization need; drops the rest. Hand-written
entries (papers' shapes, other names of the same model) come from scripts/catalog_extra.json.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src/kvproof/model/data/catalog.json"
DATE = "2026-11-30"

DROPPED = re.compile(
    r"(_token_id|_token_ids|_token_index|dropout|initializer|_std$|^rope_|^_name|^auto_map|^id2label"
    r"|^label2id|transformers_version|^bos_|^eos_|^pad_|task_specific|_loss|aux_|^use_cache"
    r"|^output_|^return_|^temperature|^top_[pk]$|^do_sample|^pretraining_tp|attn_implementation"
    r"|^chunk_size_feed|^problem_type|^finetuning|generation|^_attn|^z_loss"
    r"|^norm_topk|routed_scaling|softcapping|^mscale|_eps$|epsilon"
    r"|^original_max|^forced|^is_decoder|^tf_|^torchscript|^prefix$|^suppress|^tokenizer_class"
    r"|^begin_|^bad_words|^length_penalty|^num_beam|^min_length|^max_length|^early_stop|^ep_size"
    r"|^pruned|^repetition|^no_repeat|^exponential|^remove_invalid|^typical|^sep_token|^decoder_start"
    r"|^diversity|^encoder_no|^cross_attention_hidden|^attention_dropout|time_step|^mamba_dt"
    r"|multiplier|^router_(jitter|z)|^scoring_func|^topk_method|^n_group$|^topk_group$|beta_)"
)
KEPT = {"pad_token_id_none", "rope_local_base_freq"}
ROTARY = ("rope_parameters", "rope_scaling")
ROTARY_KEPT = {
    "type", "rope_type", "factor", "original_max_position_embeddings", "partial_rotary_factor",
    "mrope_section", "full_attention", "sliding_attention",
}  # fmt: skip
"""What tables of cosines go by: their kind, length and width."""


def slim(value: object) -> object:
    """The config without what nothing here reads."""
    if not isinstance(value, dict):
        return value
    kept = {k: slim(v) for k, v in value.items() if k in KEPT or not DROPPED.search(k)}
    return kept | {k: rotary(value[k]) for k in ROTARY if isinstance(value.get(k), dict)}


def rotary(section: dict) -> dict:
    """A rotary section, or one for each kind of layer."""
    return {
        k: rotary(v) if isinstance(v, dict) else v for k, v in section.items() if k in ROTARY_KEPT
    }


def collapse(names: list[str], layers: int) -> list[str]:
    """Name lists with one wildcard row for what every layer repeats."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in names:
        groups[re.sub(r"\.\d+(?=[.*]|$)", ".#", name)].add(name)
    out: list[str] = []
    for pattern, members in groups.items():
        many = "#" in pattern and len(members) >= max(layers - 4, 8)
        out += [pattern.replace("#", "*")] if many else sorted(members)
    return out


def slim_quantization(section: dict, layers: int) -> dict:
    out = {k: v for k, v in section.items() if k not in ("producer", "sparsity_config")}
    if "producer" in section:
        out["producer"] = {"name": section["producer"].get("name")}
    for key in ("modules_to_not_convert", "ignore", "exclude_modules"):
        if isinstance(out.get(key), list):
            out[key] = collapse(out[key], layers)
    if isinstance(out.get("quantized_layers"), dict):
        out["quantized_layers"] = collapse_layers(out["quantized_layers"])
    for group in (out.get("config_groups") or {}).values():
        group.pop("input_activations", None)
        group.pop("output_activations", None)
        if isinstance(group.get("targets"), list):
            group["targets"] = collapse(group["targets"], layers)
    return out


def collapse_layers(rows: dict[str, dict]) -> dict[str, dict]:
    """Schemes of named layers; expert and layer numbers become wildcards where all agree."""
    kinds = {name: str(row.get("quant_algo")) for name, row in rows.items()}
    for pattern in (r"(?<=experts)\.\d+(?=\.)", r"(?<=layers)\.\d+(?=\.|$)"):
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for name, kind in kinds.items():
            groups[re.sub(pattern, ".*", name)][name] = kind
        kinds = {}
        for short, members in groups.items():
            agree = len(set(members.values())) == 1
            kinds |= {short: next(iter(members.values()))} if agree else members
    return {name: {"quant_algo": kind} for name, kind in kinds.items()}


def merged(config: dict, repair: dict) -> dict:
    """`config` with what its trimmed file lacks; nested objects are merged."""
    out = dict(config)
    for key, value in repair.items():
        nested = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if nested else value
    return out


def noted(note: str, repair: str | None) -> dict[str, str]:
    """The entry's caveats: the manifest's and what was put back."""
    text = "; ".join(part for part in (note, repair and f"put back: {repair}") if part)
    return {"note": text} if text else {}


def main() -> None:
    folder = Path(sys.argv[1])
    extra = json.loads((ROOT / "scripts/catalog_extra.json").read_text())
    entries = published(folder, extra)
    entries |= {name: twin_of(entries, name, twin) for name, twin in extra["twins"].items()}
    entries |= {name: {"complete": True, **row} for name, row in extra["models"].items()}
    for entry in entries.values():
        for source, licence in extra["licences"].items():
            if entry["source"].startswith(source):
                entry["licence"] = licence
    document = {
        "date": DATE,
        "models": dict(sorted(entries.items())),
        "aliases": extra["aliases"],
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(document, separators=(",", ":"), sort_keys=False) + "\n")
    print(f"{len(entries)} models, {OUT.stat().st_size:,} bytes")


def published(folder: Path, extra: dict) -> dict[str, dict]:
    """An entry for each published config of the folder, put right by what is known of it."""
    manifest = {
        row["model"]: row
        for row in map(json.loads, (folder / "MANIFEST.jsonl").open())
        if not row["file"].startswith("quant/")
    }
    return {
        name: {
            "config": merged(facts(folder, row["file"]), extra["repairs"].get(name, {})),
            "source": extra["sources"].get(name, row["source"]),
            "complete": row["complete"],
            **noted(row["notes"], extra["repair_sources"].get(name)),
        }
        for name, row in sorted(manifest.items())
        if name not in extra["left_out"]
    }


def facts(folder: Path, file: str) -> dict:
    """A config's facts, with the quantization that it or the file beside it names."""
    config = json.loads((folder / file).read_text())
    inner = config.get("text_config") or {}
    layers = config.get("num_hidden_layers") or inner.get("num_hidden_layers", 0)
    section = config.pop("quantization_config", None) or inner.pop("quantization_config", None)
    for part in (config, inner):
        part.pop("quantization_config", None)
    slimmed = slim(config)
    if section:
        slimmed["quantization_config"] = slim_quantization(section, layers)
    side = folder / "quant" / f"{Path(file).stem}_hf_quant_config.json"
    if side.exists() and "quantization_config" not in slimmed:
        section = json.loads(side.read_text())["quantization"]
        own = {"quant_method": "modelopt", **slim_quantization(section, layers)}
        slimmed["quantization_config"] = own
    return slimmed


def twin_of(entries: dict[str, dict], name: str, twin: str) -> dict:
    """The entry of a model whose own file was trimmed, by its quantized twin's."""
    whole = {k: v for k, v in entries[twin]["config"].items() if k != "quantization_config"}
    return {
        "config": whole,
        "source": entries[twin]["source"],
        "complete": True,
        "note": f"config of {twin} less its quantization: the file of {name} was trimmed",
    }


main()
