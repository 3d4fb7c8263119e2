"""Compare the parameter recipes with real models on the meta device: default and random configs.

    python scripts/check_parameters.py [--rounds N] [--seed S] [MODEL_TYPE ...]

Every mismatch is printed with the tensors that differ; the last line counts the exact cases.
"""

from __future__ import annotations

import argparse
import collections
import copy
import random
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]

import torch  # noqa: E402
import transformers  # noqa: E402
from parameter_tracing.defaults import default_config  # noqa: E402
from trace_parameters import classes  # noqa: E402

from kvproof.errors import KvproofError  # noqa: E402
from kvproof.model.tensors import tensor_groups  # noqa: E402

GENERATING = ("causal", "itt", "s2s", "speech", "mm", "wave")
LAYER_KEYS = re.compile(
    r"(^|_)(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth|num_decoder_layers)$"
)
SKIP = re.compile(
    r"token_id|_idx$|^dtype|model_type|architectures|position_embedding_type|_attn|rope|init|dropout|eps$|_act$|activation|transformers_version|chunk_size_feed|tie_last|problem_type|is_encoder_decoder|is_decoder|cross_attention_hidden|add_cross"
)


SIX = ["conv", "full_attention"] * 3
COMPLETED: dict[str, dict[str, Any]] = {
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}
    },
    "chameleon": {"vocabulary_map": {"<image>": 1}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 8}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", *["sparse"] * 3], "num_hidden_layers": 4}
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}
    },
    "dots1": {
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "num_experts_per_tok": 2,
    },
    "emu3": {"vocabulary_map": {"<image>": 1}},
    "gpt_neo": {
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "attention_layers": ["global", "local"] * 2,
    },
    "granite4_vision": {"deepstack_layer_map": [[3, 0], [5, 1]], "downsample_rate": "4/8"},
    "hunyuan_v1_dense": {"head_dim": 64},
    "hunyuan_v1_moe": {"head_dim": 64},
    "hunyuan_vl": {"text_config": {"head_dim": 64}},
    "lfm2_moe": {"layer_types": SIX, "num_hidden_layers": 6},
    "ministral": {"head_dim": 64},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "nemotron": {"num_key_value_heads": 8},
    "qwen3_omni_moe": {"talker_config": {"text_config": {"shared_expert_intermediate_size": 512}}},
    "reformer": {"is_decoder": True},
}
"""Keys that published configs carry and without which the class does not run."""


def complete(model_type: str, config: dict[str, Any]) -> None:
    """Add what the class's own defaults lack."""

    def fill(target: dict[str, Any], extra: dict[str, Any]) -> None:
        for key, value in extra.items():
            if isinstance(value, dict) and isinstance(target.get(key), dict):
                fill(target[key], value)
            else:
                target[key] = value

    fill(config, copy.deepcopy(COMPLETED.get(model_type, {})))


def real_shapes(cls: Any, config: Any) -> collections.Counter[tuple[int, ...]]:
    """Shapes of the real model's parameters."""
    with torch.device("meta"):
        model = cls(config)
    return collections.Counter(tuple(p.shape) for p in model.parameters()), model


def recipe_shapes(model_type: str, config: Any, name: str) -> collections.Counter[tuple[int, ...]]:
    """The same from the recipe."""
    resolved = config.to_dict()
    resolved["architectures"] = [name]
    out: collections.Counter[tuple[int, ...]] = collections.Counter()
    for group in tensor_groups(model_type, resolved):
        out[group.shape] += group.count
    return out


def squeezed(shapes: collections.Counter[tuple[int, ...]]) -> collections.Counter[tuple[int, ...]]:
    """Shapes without axes of size one, which recipes may leave out."""
    out: collections.Counter[tuple[int, ...]] = collections.Counter()
    for shape, count in shapes.items():
        out[tuple(size for size in shape if size != 1)] += count
    return out


def sub_dicts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """A config dict and its sub-configs."""
    out = [config]
    for value in config.values():
        if isinstance(value, dict) and "model_type" in value:
            out += sub_dicts(value)
    return out


def shrink(config: dict[str, Any], rng: random.Random) -> None:
    """Fewer layers, so that a check takes a fraction of a second."""
    for part in sub_dicts(config):
        if any(
            isinstance(v, list) and len(v) > 4 and k.startswith(("layer", "mlp_layer"))
            for k, v in part.items()
        ):
            continue
        for key, value in part.items():
            if LAYER_KEYS.search(key) and isinstance(value, int) and value > 6:
                part[key] = rng.choice((4, 6))


def mutate(config: dict[str, Any], rng: random.Random, share: float) -> list[str]:
    """Change some keys; zamba2's recipe is of the tied blocks that all its checkpoints have."""
    done = []
    for part in sub_dicts(config):
        for key, value in sorted(part.items()):
            if SKIP.search(key) or rng.random() > share:
                continue
            if part.get("model_type") == "zamba2" and key == "tie_word_embeddings":
                continue
            if isinstance(value, bool):
                part[key] = not value
            elif isinstance(value, int) and not LAYER_KEYS.search(key):
                part[key] = (
                    value * rng.choice((2, 3)) if value < 4096 or rng.random() < 0.3 else value // 2
                )
            elif value is None and key in ("q_lora_rank", "num_key_value_heads"):
                part[key] = 16
            else:
                continue
            done.append(f"{key}={part[key]}")
    return done


def _late(*_: Any) -> None:
    raise TimeoutError


def check(model_type: str, name: str, config: Any, label: str) -> str:
    """One comparison: "" when equal, "skip" when the class refuses it, else what differs."""
    cls = getattr(transformers, name)
    try:
        signal.alarm(60)
        real, _model = real_shapes(cls, copy.deepcopy(config))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"skip {type(error).__name__} {str(error)[:80]}"
    finally:
        signal.alarm(0)
    try:
        mine = recipe_shapes(model_type, config, name)
    except (KvproofError, Exception) as error:
        return f"{label}: {type(error).__name__} {str(error)[:200]}"
    if squeezed(real) == squeezed(mine):
        return ""
    missing, extra = (dict(list(part.items())[:5]) for part in (real - mine, mine - real))
    return f"{label}: missing {missing} extra {extra}"


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    signal.signal(signal.SIGALRM, _late)
    args = argparse.ArgumentParser()
    args.add_argument("--rounds", type=int, default=3)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--full", action="store_true")
    args.add_argument("types", nargs="*")
    opts = args.parse_args()
    rng = random.Random(opts.seed)
    tally: collections.Counter[str] = collections.Counter()
    wrong = set()
    for model_type, name in generating(opts.types):
        for number in range(opts.rounds + 1):
            verdict, text = checked(model_type, name, rng, number=number, full=opts.full)
            tally[verdict] += 1
            if verdict == "wrong":
                wrong.add(model_type)
            if text and (verdict == "wrong" or number == 0):
                print(model_type, name, text[:700], flush=True)
    print(dict(tally), len(wrong), "types with a mismatch:", *sorted(wrong))


def generating(wanted: list[str]) -> Iterator[tuple[str, str]]:
    """Each model type and class that generates, of the types `wanted` where any are named."""
    for model_type, kinds in sorted(classes().items()):
        if not wanted or model_type in wanted:
            names = dict.fromkeys(n for k in GENERATING for n in kinds.get(k, ()))
            yield from ((model_type, name) for name in names)


def checked(
    model_type: str, name: str, rng: random.Random, *, number: int, full: bool
) -> tuple[str, str]:
    """One of "exact", "wrong", "refused" for a config (0: the default, else changed), and why."""
    try:
        config, label = drawn(model_type, name, rng, changed=number > 0, full=full)
        kind = config.model_type
    except Exception as error:
        return "refused", f"NO DEFAULT {str(error)[:100]}"
    result = check(kind, name, config, label[:300])
    if not result:
        return "exact", ""
    return ("refused" if result.startswith("skip") else "wrong"), result


def drawn(
    model_type: str, name: str, rng: random.Random, *, changed: bool, full: bool
) -> tuple[Any, str]:
    """A config of the class, small unless `full`, and what was changed in it."""
    base = default_config(model_type).to_dict()
    if not full:
        shrink(base, rng)
    complete(model_type, base)
    label = " ".join(mutate(base, rng, rng.choice((0.05, 0.15, 0.3)))) if changed else "default"
    config = transformers.CONFIG_MAPPING[model_type].from_dict(base)
    want = getattr(transformers, name).config_class
    if isinstance(config, want):
        return config, label
    text = config.get_text_config(decoder=True)
    return (text if isinstance(text, want) else config), label


if __name__ == "__main__":
    main()
