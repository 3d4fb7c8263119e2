"""Measure what the installed transformers caches for tiny models of every generating architecture.

    python scripts/measure_transformers.py OUT.json [MODEL_TYPE ...]     # with the extra [oracle]

Each record holds the config as transformers saves it, the number of parameters, and for prompts
of 8, 33 and 70 tokens, for 33 + 1 decoded and for a static cache of 128 the logical and allocated
bytes of every cache layer. Random weights, batch 1, bf16, CPU. Types that can't be built or run
are listed with the reason.
"""

from __future__ import annotations

import gc
import inspect
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedConfig, StaticCache
from transformers.models.auto import modeling_auto as auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tiny_models import NARROW, SHALLOW, VARIANTS, tiny_config

FAMILIES = {
    "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "image_text": auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    "multimodal": auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
ENCODER = 21
DROPPED = (
    "transformers_version",
    "id2label",
    "label2id",
    "rope_parameters",
    "vision_start_token_id",
)
SKIP_ATTRIBUTES = {"_sliding_window_tensor", "cumulative_length_tensor"}


def tensors_of(layer: Any) -> dict[str, torch.Tensor]:
    """Every non-empty cache tensor of a cache layer, by attribute."""
    found: dict[str, torch.Tensor] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.numel() and value.dim() > 1:
                found[name] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{name}.{key}", inner)
        elif isinstance(value, (list, tuple)):
            for key, inner in enumerate(value):
                visit(f"{name}.{key}", inner)

    for name, value in vars(layer).items():
        if name not in SKIP_ATTRIBUTES:
            visit(name, value)
    return found


def layer_bytes(layer: Any) -> list[int]:
    """Logical bytes (aliases once) and bytes of the storages behind them."""
    tensors = tensors_of(layer)
    logical: dict[tuple[int, tuple[int, ...]], int] = {}
    storages: dict[int, int] = {}
    whole = {t.untyped_storage().data_ptr() for t in tensors.values() if covers(t)}
    for tensor in tensors.values():
        if not covers(tensor) and tensor.untyped_storage().data_ptr() in whole:
            continue  # a view of a tensor that is counted itself
        logical[(tensor.data_ptr(), tuple(tensor.shape))] = tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return [sum(logical.values()), sum(storages.values())]


def runs(layers: list[Any]) -> list[list[int]]:
    """[logical, allocated, how many layers in a row] of all cache layers."""
    out: list[list[int]] = []
    for layer in layers:
        size = layer_bytes(layer)
        if out and out[-1][:2] == size:
            out[-1][2] += 1
        else:
            out.append([*size, 1])
    return out


def covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def cache_bytes(cache: Any) -> dict[str, Any]:
    if isinstance(cache, EncoderDecoderCache):
        own = runs(cache.self_attention_cache.layers)
        cross = runs(cache.cross_attention_cache.layers)
        shape = max(
            (t.shape[-2] for layer in cache.cross_attention_cache.layers
             for t in tensors_of(layer).values()), default=0,
        )  # fmt: skip
        return {"self": own, "cross": cross, "encoder": shape}
    if hasattr(cache, "layers"):
        out: dict[str, Any] = {"self": runs(cache.layers)}
        extra = {k: v for k, v in vars(cache).items() if k != "layers"}
        outside = sum(
            t.numel() * t.element_size()
            for value in extra.values()
            for t in tensors_of(type("Extra", (), {})() if value is None else _box(value)).values()
        )
        return {**out, "extra": outside} if outside else out
    return {"whole": layer_bytes(_box(cache))}


class _Box:
    def __init__(self, value: Any) -> None:
        self.value = vars(value) if hasattr(value, "__dict__") else value


def _box(value: Any) -> _Box:
    return _Box(value)


def encoder_inputs(model: Any, config: PreTrainedConfig, family: str) -> dict[str, Any]:
    """Inputs of the encoder; text where the model takes text."""
    name = model.main_input_name
    if config.model_type == "speech-encoder-decoder":
        name = "input_values"
    if config.model_type == "pp_formulanet":
        width = config.text_config.d_model
        return {"encoder_outputs": (torch.zeros(1, ENCODER, width, dtype=torch.bfloat16),)}
    if name in ("input_features", "input_values"):
        kind = config.model_type
        if kind in ("speecht5", "speech-encoder-decoder"):
            return {"input_values": torch.randn(1, 4000, dtype=torch.bfloat16)}
        if kind in ("moonshine", "moonshine_streaming"):
            sound = torch.randn(1, 8000, dtype=torch.bfloat16)
            return {"input_values": sound, "attention_mask": torch.ones(1, 8000, dtype=torch.long)}
        if kind == "pop2piano":
            width = config.d_model
            return {"inputs_embeds": torch.randn(1, ENCODER, width, dtype=torch.bfloat16)}
        inner = getattr(config, "encoder_config", config)
        bins = getattr(inner, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", 80)
        frames = 2 * config.max_source_positions if kind == "whisper" else 64
        if kind == "whisper":
            return {"input_features": torch.randn(1, bins, frames, dtype=torch.bfloat16)}
        if kind.startswith("seamless"):
            bins = config.feature_projection_input_dim
        return {"input_features": torch.randn(1, frames, bins, dtype=torch.bfloat16)}
    return {"input_ids": torch.randint(5, 100, (1, ENCODER))}


def image_inputs(config: PreTrainedConfig, family: str) -> dict[str, Any]:
    """Images for the classes that can't do without one."""
    pixels = torch.zeros(1, 3, 224, 224, dtype=torch.bfloat16)
    kind = config.model_type
    if kind in ("blip", "blip-2"):
        return {"pixel_values": pixels}
    if kind in ("instructblip", "instructblipvideo"):
        pixels = pixels if kind == "instructblip" else pixels[:, None]
        return {"pixel_values": pixels, "qformer_input_ids": torch.ones(1, 4, dtype=torch.long)}
    if kind == "vision-encoder-decoder":
        return {"pixel_values": pixels}
    if kind == "idefics":
        return {"pixel_values": pixels[:, None]}
    if kind == "kosmos-2":
        return {"image_embeds": torch.zeros(1, 4, 64, dtype=torch.bfloat16)}
    if kind == "pix2struct":
        return {"flattened_patches": torch.zeros(1, ENCODER, 770, dtype=torch.bfloat16)}
    return {}


def run(model: Any, config: PreTrainedConfig, family: str, cache: Any, tokens: int,
        decode: int = 0) -> Any:  # fmt: skip
    """Prefill `tokens` (then decode) and give the cache back."""
    ids = torch.randint(5, 100, (1, tokens))
    seq2seq = bool(config.is_encoder_decoder) and family in (
        "seq2seq",
        "speech",
        "image_text",
        "multimodal",
    )
    given = encoder_inputs(model, config, family) if seq2seq else {}
    key = "decoder_input_ids" if seq2seq else "input_ids"
    if config.model_type == "udop":
        given["bbox"] = torch.zeros(1, ENCODER, 4)
    if config.model_type == "xmod":
        given["lang_ids"] = torch.zeros(1, dtype=torch.long)
    given |= image_inputs(config, family)
    if config.model_type == "ernie4_5_vl_moe":
        given["mm_token_type_ids"] = torch.zeros(1, tokens, dtype=torch.long)
        given["moe_mm_token_type_ids"] = torch.zeros(1, tokens, dtype=torch.long)
    if config.model_type == "idefics":
        given["image_attention_mask"] = torch.ones(1, tokens, 1)
    if config.model_type == "dia":
        ids = ids[..., None].expand(1, tokens, 9)
    if config.model_type == "kyutai_speech_to_text":
        ids = ids[..., None].expand(1, tokens, config.num_codebooks + 1)
    if "musicgen" in config.model_type and family == "causal":
        ids = ids.expand(4, tokens)
    takes = inspect.signature(model.forward).parameters
    name = next(
        (n for n in ("cache", "past_buckets_states", "mems", "state") if n in takes),
        "past_key_values",
    )
    extra = {name: cache} if cache is not None else {}
    out = model(**given, **{key: ids}, use_cache=True, **extra)
    kept = cache if held(out) is None else held(out)
    for _ in range(decode):
        if seq2seq and "input_ids" in given:
            given = {"encoder_outputs": (out.encoder_last_hidden_state,)}
        out = model(**given, **{key: torch.randint(5, 100, (1, 1))}, use_cache=True, **{name: kept})
        kept = cache if held(out) is None else held(out)
    return kept


def held(out: Any) -> Any:
    for name in (
        "cache",
        "past_key_values",
        "cache_params",
        "state",
        "mems",
        "past_buckets_states",
    ):
        value = getattr(out, name, None)
        if value is not None:
            return value
    return None


def measure(family: str, kind: str, class_name: str, variant: str | None = None) -> dict[str, Any]:
    """The record of one architecture, with narrow outer parts if it runs so."""
    try:
        return measure_with(family, kind, class_name, variant, (NARROW,))
    except Exception:
        return measure_with(family, kind, class_name, variant, (SHALLOW,))


def measure_with(
    family: str, kind: str, class_name: str, variant: str | None, widths: tuple[Any, ...]
) -> dict[str, Any]:
    model_class = getattr(transformers, class_name)
    config = tiny_config(kind, model_class, variant, widths)
    for sub in (config, *[getattr(config, key, None) for key in config.sub_configs]):
        if isinstance(sub, PreTrainedConfig):
            sub._attn_implementation = "eager"
    torch.manual_seed(0)
    wide = kind in ("reformer", "xlnet")  # they can't run in bf16
    model = model_class._from_config(config, dtype=torch.float32 if wide else torch.bfloat16).eval()
    saved = json.loads(config.to_json_string())
    saved["architectures"] = [class_name]
    for section in (saved, *(v for v in saved.values() if isinstance(v, dict))):
        for key in DROPPED:
            section.pop(key, None)
    record: dict[str, Any] = {
        "model_type": kind,
        "family": family,
        "variant": variant,
        "dtype": "f32" if wide else "bf16",
        "config": saved,
        "n_params": sum(p.numel() for p in model.parameters()),
        "lengths": {},
    }

    def start() -> Any:  # two classes fill a cache that is given and never return it
        return DynamicCache(config=config) if kind in ("recurrent_gemma", "xlm") else None

    with torch.no_grad():
        for tokens in (8, 33, 70):
            kept = run(model, config, family, start(), tokens)
            record["lengths"][str(tokens)] = outside(model, cache_bytes(kept))
        record["decode_34"] = outside(
            model, attempt(lambda: run(model, config, family, start(), 33, 1))
        )
        encoder = record["lengths"]["33"].get("encoder", 0)
        record["static"] = outside(
            model, attempt(lambda: run(model, config, family, static(config, family, encoder), 33))
        )
    return record


def outside(model: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Add the states that RecurrentGemma keeps in its modules."""
    found = [
        state for module in model.modules()
        for state in (vars(module).get("conv1d_state"), vars(module).get("recurrent_states"))
        if isinstance(state, torch.Tensor)
    ]  # fmt: skip
    size = sum(t.numel() * t.element_size() for t in found)
    return {**sizes, "extra": size} if size else sizes


def attempt(make: Any) -> dict[str, Any]:
    try:
        return cache_bytes(make())
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:120]}"}


def static(config: PreTrainedConfig, family: str, encoder: int) -> Any:
    cache = StaticCache(config=config, max_cache_len=128)
    if config.is_encoder_decoder and family != "causal":
        return EncoderDecoderCache(cache, StaticCache(config=config, max_cache_len=encoder))
    return cache


def jobs(wanted: set[str]) -> list[tuple[str, str, str, str | None]]:
    out: dict[tuple[str, str], tuple[str, str, str, str | None]] = {}
    for family, table in FAMILIES.items():
        for kind, names in table.items():
            name = names if isinstance(names, str) else names[0]
            if kind in CONFIG_MAPPING and (not wanted or kind in wanted):
                out.setdefault((kind, name), (family, kind, name, None))
    plain = list(out.values())
    more = [(*job[:3], name) for job in plain for kind, name in VARIANTS if kind == job[1]]
    return [*plain, *more]


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    target, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    records: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for family, kind, name, variant in jobs(wanted):
        try:
            records.append(measure(family, kind, name, variant))
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            failed.append({"model_type": kind, "class": name, "reason": reason})
            print(f"FAILED {kind} {variant or ''} {name}: {reason}", flush=True)
        gc.collect()
        save(target, records, failed)
    print(f"{len(records)} measured, {len(failed)} failed")


def save(target: Path, records: list[dict[str, Any]], failed: list[dict[str, str]]) -> None:
    body = {"transformers": transformers.__version__, "records": records, "failed": failed}
    target.write_text(json.dumps(body, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
