"""Generate src/kvproof/model/data/architectures/parameters/ from the installed transformers.

    python scripts/trace_parameters.py [MODEL_TYPE ...]

Every model class's constructor is interpreted over a symbolic config: both sides of each branch,
each loop once with a symbolic counter. What comes out is each parameter's name, shape, condition
and repeats as expressions of config keys. scripts/check_parameters.py then compares the recipes
with real models on the meta device.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.setrecursionlimit(20_000)

import transformers  # noqa: E402
import transformers.models.auto.modeling_auto as auto  # noqa: E402
from parameter_tracing import collect, configs, invocation, recipes  # noqa: E402
from parameter_tracing.defaults import default_config, evaluator  # noqa: E402
from parameter_tracing.expressions import E, mk  # noqa: E402
from parameter_tracing.interpreter import Interpreter  # noqa: E402

OUT = Path(__file__).parent.parent / "src/kvproof/model/data/architectures/parameters"
KINDS = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "itt": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "s2s": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "mm": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "wave": "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "spectrogram": "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "backbone": "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "frames": "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES",
    "text": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "audio_tokens": "MODEL_FOR_AUDIO_TOKENIZATION_NAMES",
    "base": "MODEL_MAPPING_NAMES",
}
DEFAULT_ORDER = (
    "itt",
    "mm",
    "s2s",
    "speech",
    "causal",
    "wave",
    "spectrogram",
    "base",
    "text",
    "backbone",
    "audio_tokens",
    "ctc",
)
CAUSAL_FIRST = {"bart", "mbart"}


def classes() -> dict[str, dict[str, list[str]]]:
    """Model type -> kind -> class names."""
    out: dict[str, dict[str, list[str]]] = {}
    for kind, table in KINDS.items():
        for model_type, names in getattr(auto, table).items():
            found = [names] if isinstance(names, str) else list(names)
            out.setdefault(model_type, {})[kind] = found
    for model_type, (head, body) in HEADLESS.items():
        out[model_type] = {"causal": [head], "base": [body]}
    for model_type, kinds in list(out.items()):
        if model_type in HEADLESS:
            continue
        for kind, names in kinds.items():
            try:
                own = getattr(getattr(transformers, names[0], None), "config_class", None)
            except ImportError:  # classes that want a library that is not there
                continue
            part = getattr(own, "model_type", "") or model_type
            if part != model_type and part in transformers.CONFIG_MAPPING:
                out.setdefault(part, {}).setdefault(kind, []).extend(
                    n for n in names if n not in out[part].get(kind, [])
                )
    return out


HEADLESS = {"deepseek_ocr2_text": ("DeepseekForCausalLM", "DeepseekOcr2TextModel")}
"""Published language models whose design transformers has only as a part of another model."""


def trace(model_type: str, class_name: str) -> Any:
    """Interpret one class."""
    head, body = HEADLESS.get(model_type, ("", ""))
    if class_name == head:
        interp, walk, late = trace(model_type, body)
        for group in walk.groups:
            group.name = f"model.{group.name}"
        shape = (E("c", "vocab_size"), E("c", "hidden_size"))
        untied = mk("not", mk("get", E("root"), "tie_word_embeddings", False))
        walk.groups.append(
            collect.Group("lm_head.weight", shape, untied, (), None, "linear", False)
        )
        return interp, walk, late
    cls = named(class_name)
    inst = default_config(model_type)
    interp = Interpreter(evaluator(inst))
    config = configs.for_class(cls, inst)
    root = invocation.construct(interp, cls, [config], {})
    walk = collect.walk(interp, root)
    if model_type == "zamba":
        layers = E("c", "layers_block_type")
        walk.share(".shared_transf.", mk("in", "hybrid", layers), E("c", "tie_word_embeddings"))
    return interp, walk, walk.apply_ties()


def named(class_name: str) -> Any:
    """A model class by its name, also one that transformers does not export."""
    found = getattr(transformers, class_name, None)
    if found is None:
        from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as module

        found = getattr(module, class_name)
    return found


def recipe(
    model_type: str, kinds: dict[str, list[str]], failures: dict[str, str]
) -> dict[str, Any] | None:
    """The file of one model type, or None."""
    nodes = recipes.Nodes()
    made: dict[str, Any] = {}
    for names in kinds.values():
        for name in names:
            if name in made or not (hasattr(transformers, name) or model_type in HEADLESS):
                continue
            try:
                signal.alarm(120)
                interp, walk, late = trace(model_type, name)
                made[name] = recipes.write_class(
                    nodes, walk, late, interp.bounds, "speech" in kinds
                )
            except Exception as error:
                failures[f"{model_type} {name}"] = (
                    f"{type(error).__name__}: {str(error)[:120]} {getattr(error, 'where', [])[:3]}"
                )
            finally:
                signal.alarm(0)
    if not made:
        return None
    first = {kind: next((n for n in names if n in made), None) for kind, names in kinds.items()}
    uses = {kind: name for kind, name in first.items() if name}
    order = DEFAULT_ORDER if "base" not in uses or len(uses) > 1 else ("base",)
    uses["default"] = next(uses[k] for k in order if k in uses)
    aliases = dict(sorted(type(default_config(model_type)).attribute_map.items()))
    return {
        "model_type": model_type,
        "kinds": dict(sorted(uses.items())),
        "aliases": aliases,
        "classes": made,
        "nodes": nodes.rows,
    }


def _too_long(*_: Any) -> None:
    raise TimeoutError("tracing took over 120 s")


def main() -> None:
    transformers.logging.set_verbosity_error()
    wanted = sys.argv[1:]
    failures: dict[str, str] = {}
    signal.signal(signal.SIGALRM, _too_long)
    OUT.mkdir(parents=True, exist_ok=True)
    for model_type, kinds in sorted(classes().items()):
        if wanted and model_type not in wanted:
            continue
        try:
            made = recipe(model_type, kinds, failures)
        except Exception as error:
            failures[model_type] = f"{type(error).__name__}: {str(error)[:160]}"
            continue
        if made is not None:
            text = json.dumps(made, separators=(",", ":"), ensure_ascii=False)
            (OUT / f"{model_type}.json").write_text(text + "\n", encoding="utf-8")
    for name, why in failures.items():
        print(name, why)
    print(len(failures), "classes failed")


if __name__ == "__main__":
    main()
