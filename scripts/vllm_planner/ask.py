"""Ask vLLM's planner about cases: `python ask.py CASES.json ANSWERS.json`, one GPU a process.

A case: {"config": a parsed config.json, "gpu": a name of pretend.GPUS or "CPU", "kv_bytes": bytes
per GPU, "flags": EngineArgs fields, "usage_context": "api_server" | "llm_class" | "engine_context",
"draft": the parsed config.json of a draft model}. Answers, one JSON line a case, hold what the
engine would plan and print, {"error": ...} where a request does not fit, or {"refused": ...} where
vLLM does not start, with the places in its source.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))


class Ranks:
    """A process group of `count` ranks as the first one sees it; nothing is sent."""

    use_device_communicator = False
    device_communicator = mq_broadcaster = None
    unique_name = "pretended"

    def __init__(self, count: int, rank: int = 0) -> None:
        self.world_size, self.ranks = count, list(range(count))
        self.rank_in_group = self.rank_number = self.local_rank = rank
        self.is_first_rank, self.is_last_rank = rank == 0, rank == count - 1
        self.first_rank, self.last_rank = 0, count - 1
        self.cpu_group = self.device_group = _Group(count, rank)

    @property
    def rank(self) -> int:
        return self.rank_number


class _Group:
    def __init__(self, count: int, rank: int) -> None:
        self.count, self.number = count, rank
        self.world_size, self.rank_in_group, self.ranks = count, rank, list(range(count))

    def size(self) -> int:
        return self.count

    def rank(self) -> int:
        return self.number


def pretend_groups(flags: dict[str, Any], stage: int) -> None:
    import vllm.distributed.parallel_state as state

    ranks = flags.get("tensor_parallel_size", 1)
    stages = flags.get("pipeline_parallel_size", 1)
    state._WORLD = Ranks(ranks * stages)
    state._TP = state._EP = state._ETP = Ranks(ranks)
    state._PP = Ranks(stages, stage)
    state._DCP = Ranks(flags.get("decode_context_parallel_size", 1))
    for name in ("_DP", "_PCP", "_EPLB", "_ENGRAM_DP"):
        setattr(state, name, Ranks(1))


@contextlib.contextmanager
def on_meta(dtype: Any) -> Iterator[None]:
    """Every tensor made inside has a shape and no storage, whatever device is asked for."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    makers = _device_constructors()
    moves = {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}

    class Meta(TorchFunctionMode):
        def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None):
            options = dict(kwargs or {})
            if function in makers or "device" in options:
                options.pop("pin_memory", None)
                return function(*args, **{**options, "device": "meta"})
            if function in moves:
                return args[0]
            if function is torch.device and args and isinstance(args[0], int):
                return function("cuda", args[0])  # a number alone asks for a real device
            if function is torch.Tensor.to:
                return _cast(function, args, options)
            if function is torch._C._nn._parse_to:
                wanted = [x for x in (*args, *options.values()) if isinstance(x, torch.dtype)]
                return None, wanted[0] if wanted else None, False, None
            if function in (torch.nonzero, torch.Tensor.nonzero) and args[0].is_meta:
                return torch.empty((1, args[0].dim()), dtype=torch.long)
            if function is torch.where and len(args) == 1:
                return tuple(torch.empty(1, dtype=torch.long) for _ in range(args[0].dim()))
            if function in (torch.Tensor.item, torch.Tensor.tolist) and args[0].is_meta:
                return 0 if function is torch.Tensor.item else [0]
            return function(*args, **options)

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with Meta(), torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)


def _cast(function: Any, args: Any, options: dict[str, Any]) -> Any:
    import torch

    wanted = options.get("dtype")
    for value in args[1:]:
        if isinstance(value, torch.dtype):
            wanted = value
        elif isinstance(value, torch.Tensor):
            wanted = value.dtype
    return args[0] if wanted is None else function(args[0], wanted)


_USUAL = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
"""What trimmed configs leave to their class and no plan depends on."""


def know_type(config: dict[str, Any]) -> None:
    """Give a model type whose config class lies in its repository a plain class of that name.

    vLLM runs that code with --trust-remote-code; the keys of config.json are what it holds too.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, Qwen2Config
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    name = config.get("model_type")
    if not name or name in CONFIG_MAPPING or name in _CONFIG_REGISTRY:
        return

    base = Qwen2Config if "use_sliding_window" in config else PretrainedConfig

    def start(self: Any, **keys: Any) -> None:
        keys = {**_USUAL, **keys}
        for part in [key for key, value in keys.items() if isinstance(value, dict)]:
            if part.endswith("_config") and part != "quantization_config":
                keys[part] = PretrainedConfig(**keys[part])
        base.__init__(self, **keys)

    AutoConfig.register(name, type("Plain", (base,), {"model_type": name, "__init__": start}))


def engine_config(case: dict[str, Any], folder: str) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    flags = dict(case["flags"])
    if case.get("draft"):
        draft = Path(folder) / "draft"
        draft.mkdir()
        (draft / "config.json").write_text(json.dumps(case["draft"]))
        flags["speculative_config"] = {**flags["speculative_config"], "model": str(draft)}
    several = flags.get("tensor_parallel_size", 1) * flags.get("pipeline_parallel_size", 1) > 1
    context = {
        "api_server": UsageContext.OPENAI_API_SERVER,
        "llm_class": UsageContext.LLM_CLASS,
        "engine_context": UsageContext.ENGINE_CONTEXT,
    }[case.get("usage_context", "api_server")]
    arguments = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        distributed_executor_backend="mp" if several else None,
        **flags,
    )
    return arguments.create_engine_config(usage_context=context)


def check_type(dtype: Any) -> None:
    """What a worker on a GPU asks of the activations' type when it starts (gpu_worker.py)."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        current_platform.check_if_supports_dtype(dtype)


def look_at_pictures(model: Any) -> None:
    """Raise where the longest item of a prefix language model can't be had: vLLM would go on with
    the smaller default batch, for want of the processor's files only.
    """
    from vllm.multimodal import MULTIMODAL_REGISTRY

    if model.is_multimodal_model and model.is_mm_prefix_lm:
        info = MULTIMODAL_REGISTRY.get_processing_info(model)
        counts = dict.fromkeys(info.supported_mm_limits, 1)
        info.get_mm_max_tokens_per_item(seq_len=model.max_model_len, mm_counts=counts)


_SETTLED = ("block_size", "mamba_block_size", "mamba_page_size_padded")
"""What a worker settles for its own layers: each stage is a process with a config of its own."""


def specs_by_stage(config: Any, flags: dict[str, Any]) -> tuple[list[Any], list[str], list[str]]:
    """(each stage's layer specs, layouts its backends take, names of its backends)."""
    import torch
    import vllm.v1.worker.workspace as workspace
    from vllm.config import set_current_vllm_config
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    specs: list[Any] = []
    layouts: list[str] = []
    backends: set[str] = set()
    stages = flags.get("pipeline_parallel_size", 1)
    cache = config.cache_config
    given = {name: getattr(cache, name) for name in _SETTLED}
    for stage in range(stages):
        pretend_groups(flags, stage)
        for name, value in given.items():
            setattr(cache, name, value)
        config.parallel_config.rank = stage * flags.get("tensor_parallel_size", 1)
        config.compilation_config.static_forward_context.clear()
        with set_current_vllm_config(config), on_meta(config.model_config.dtype):
            if not workspace.is_workspace_manager_initialized():
                workspace.init_workspace_manager(torch.device("meta"))
            initialize_model(config)
            if stage == stages - 1:
                add_draft(config)
        current_platform.update_block_size_for_backend(config)
        with set_current_vllm_config(config):
            specs.append(get_kv_cache_spec(config))
            found = get_current_attn_backends(config)
            layouts = layouts or [x.name for x in get_supported_kv_cache_layouts(found)]
            backends.update(backend.get_name() for backend in found)
    return specs, layouts, sorted(backends)


def add_draft(config: Any) -> None:
    """Register the layers of a draft model, as v1/worker/gpu/spec_decode loads it."""
    from vllm.config import replace
    from vllm.model_executor.model_loader.utils import initialize_model

    own = config.speculative_config
    if own is None or own.draft_model_config is None or own.method.startswith(("ngram", "suffix")):
        return
    if not own.uses_draft_model():
        initialize_model(own.apply_draft_overrides(config), model_config=own.draft_model_config)
        return
    cache = config.cache_config
    if own.kv_cache_dtype is not None:
        cache = replace(cache, cache_dtype=own.kv_cache_dtype)
    changed = replace(
        config,
        model_config=own.draft_model_config,
        quant_config=None,
        cache_config=cache,
        parallel_config=own.draft_parallel_config,
    )
    initialize_model(changed, prefix="draft_model")


def forget() -> None:
    """Choices of backends that depend on more than their keys; an engine starts with none made."""
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends.mla.prefill import selector as prefill

    selector._cached_get_attn_backend.cache_clear()
    selector._cached_get_mamba_attn_backend.cache_clear()
    prefill._auto_select_mla_prefill_backend.cache_clear()


def plan(case: dict[str, Any]) -> dict[str, Any]:
    """The planner's answer to one case, as the engine's start would reach it."""
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils as utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    forget()
    with tempfile.TemporaryDirectory() as folder:
        own = {key: value for key, value in case["config"].items() if key != "auto_map"}
        know_type(own)
        (Path(folder) / "config.json").write_text(json.dumps(own))
        config = engine_config(case, folder)
        check_type(config.model_config.dtype)
        if "max_num_batched_tokens" not in case["flags"]:
            look_at_pictures(config.model_config)
        specs, layouts, backends = specs_by_stage(config, case["flags"])
    register_all_kvcache_specs(config)
    layout = resolve_kv_cache_layout(
        config, [layouts] * len(specs), [s for stage in specs for s in stage.values()]
    )
    answer = {
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "backends": backends,
        "layout": layout.name,
    }
    memory = [case["kv_bytes"]] * len(specs)
    try:
        planned = utils.get_kv_cache_configs(config, specs, memory)
    except ValueError as error:
        return answer | {"error": str(error), "max_model_len": config.model_config.max_model_len}
    return answer | _printed(config, planned, layout)


def _resolve_blocks(config: Any, scheduler: Any) -> None:
    """What the engine's core asks of the groups' blocks before it starts (v1/engine/core.py)."""
    from vllm.v1.core import kv_cache_utils as utils

    specs = [group.kv_cache_spec for group in scheduler.kv_cache_groups]
    kept = [spec for spec in specs if spec.prefix_cacheable]
    before = config.cache_config.block_size
    config.cache_config.block_size = min(spec.block_size for spec in kept or specs)
    utils.resolve_kv_cache_block_sizes(scheduler, config)
    config.cache_config.block_size = before


def _printed(config: Any, planned: list[Any], layout: Any) -> dict[str, Any]:
    from vllm.v1.core import kv_cache_utils as utils

    own = planned[0].kv_cache_groups
    scheduler = utils.generate_scheduler_kv_cache_config(planned)
    _resolve_blocks(config, scheduler)
    tokens, concurrency = utils.get_kv_cache_capacity(config, scheduler)
    groups = []
    for mine, shown in zip(own, scheduler.kv_cache_groups, strict=True):
        whole, spec = mine.kv_cache_spec, shown.kv_cache_spec
        each = getattr(whole, "kv_cache_specs", {})
        pages = [each.get(name, spec).page_size_bytes for name in mine.layer_names]
        held = -(-whole.max_memory_usage_bytes(config) // whole.page_size_bytes)
        groups.append([type(spec).__name__, len(pages), spec.block_size, spec.page_size_bytes,
                       held, sum(pages)])  # fmt: skip
    shown_specs = [g.kv_cache_spec for g in scheduler.kv_cache_groups]
    kept = [spec for spec in shown_specs if spec.prefix_cacheable]
    sizes = [spec.block_size for spec in kept or shown_specs]
    return {
        "max_model_len": config.model_config.max_model_len,
        "num_blocks": scheduler.num_blocks,
        "bytes_per_block": utils._get_kv_cache_bytes_per_block(own, layout),
        "block_size": min(sizes),
        "tokens": tokens,
        "max_concurrency": concurrency,
        "groups": groups,
    }


def places(error: Exception) -> list[str]:
    """Where an error was raised: the innermost places in the engine's source."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]


def answer_all(source: str, target: str, answer: Callable[[dict[str, Any]], Any]) -> None:
    """Write what `answer` says to each case of `source`, or why vLLM refuses it, a line each."""
    from pretend import become

    cases = json.loads(Path(source).read_text())
    if len({case["gpu"] for case in cases}) > 1:
        raise SystemExit("one GPU a process")
    become(cases[0]["gpu"])
    with Path(target).open("w") as out:
        for case in cases:
            try:
                said = answer(case)
            except Exception as error:
                text = " ".join(str(error).split())
                said = {
                    "refused": f"{type(error).__name__}: {text[:300]}",
                    "places": places(error),
                }
            out.write(json.dumps(said) + "\n")
            out.flush()


if __name__ == "__main__":
    answer_all(*sys.argv[1:3], plan)
