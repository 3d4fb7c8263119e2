"""What vLLM's profiling run takes besides weights, in parts that add up.

Each part is a quantity that the run allocates (rows of logits, a batch's widest layer, experts'
intermediates, communication buffers) times a constant of `data/budget.json`, which
scripts/fit_vllm_budget.py fits to start-up logs. Source of the run: vLLM 0.32,
v1/worker/gpu_worker.py (determine_available_memory) and gpu_model_runner.py (profile_run).
"""

from __future__ import annotations

import msgspec

from kvproof.engine.vllm.expert_kernels import expert_need, kernel_of
from kvproof.engine.vllm.graph_memory import graph_part
from kvproof.engine.vllm.images import held_picture, image_peak
from kvproof.engine.vllm.outside import communication, framework, unseen_fusion
from kvproof.engine.vllm.parts import Part, constants, part
from kvproof.engine.vllm.peaks import layer_peak, sparse_need
from kvproof.engine.vllm.runners import on_second_runner
from kvproof.engine.vllm.sampler import (
    fitted_sampler,
    least_sampler,
    may_sort_nothing,
    sampler_bytes,
)
from kvproof.engine.vllm.settings import Settings
from kvproof.engine.vllm.towers import profiles_towers
from kvproof.hardware import Accelerator
from kvproof.model.types import Model
from kvproof.units import GIB

_ONE_START = "one start (DeepSeek-V4-Flash, 0.26.0, B300)"
_ONE_WORKSPACE = (0, 13, 0)
"""Since when kernels of experts and sparse attention share one buffer, as large as the larger need
(v1/worker/workspace.py)."""
_SAMPLER_DOUBT = 0.02
"""Share in doubt: 14 of 19 printed peaks of the sampler lie within 0.02 (17 within 0.03)."""
_HOST_SHARE, _HOST_DOUBT = 0.035, 0.02
"""Of memory shared with the CPU: log315 and four public logs of GB10 leave 5.9, 5.5, 5.0, 3.6 and
2.2 of 121.7 GiB to no other term."""


class Quantities(msgspec.Struct, frozen=True, kw_only=True):
    """What the run's parts are proportional to."""

    logits: int
    layer_bytes: int
    image_bytes: int
    held_bytes: int
    """An image's inputs and embeddings, held while the decoder runs."""
    mixed_streams: bool
    """Residual streams that a matrix mixes, whose copies were seen in one start alone."""
    experts: int
    """What kernels of routed experts keep."""
    workspace: int
    """What sparse attention gathers into, beyond what experts' kernels keep in the same buffer."""
    encoders: bool
    words: tuple[str, str, str, str, str]
    """How the layer, the image, what is held of it, experts and the workspace come about."""


def quantities(model: Model, settings: Settings) -> Quantities:
    """Logits of the dummy sampler, bytes of a layer's states, bytes of experts' inputs."""
    rows = _sampled(settings)
    experts, expert_words = expert_need(model, settings)
    gathered, gathered_words = sparse_need(model, settings)
    if settings.rules.version >= _ONE_WORKSPACE:
        gathered = max(0, gathered - experts)
        gathered_words += f" - {experts:,} B of experts in the same buffer" if experts else ""
    layer, layer_words = layer_peak(model, settings)
    image, image_words = image_peak(model, settings)
    held, held_words = held_picture(model, settings)
    return Quantities(
        logits=rows * model.vocab_size,
        layer_bytes=layer,
        mixed_streams=int(model.text_config.get("hc_mult") or 1) > 1,
        image_bytes=image,
        held_bytes=held,
        experts=experts,
        workspace=gathered,
        encoders=_has_encoders(model) and profiles_towers(model, settings.flags),
        words=(layer_words, image_words, held_words, expert_words, gathered_words),
    )


def _sampled(settings: Settings) -> int:
    """Rows of logits that the dummy sampler draws from."""
    return min(settings.max_num_seqs, settings.max_num_batched_tokens)


def _has_encoders(model: Model) -> bool:
    if any(group.role in ("vision", "audio") for group in model.tensors):
        return True
    return any(key in model.config for key in ("vision_config", "audio_config"))


def other_ways(model: Model, settings: Settings, gpu: Accelerator) -> tuple[int, int]:
    """Bytes that the run takes less, and more, if the installation is another than assumed.

    Less: FlashInfer's sampler, which V1 took before 0.11.1 where the package was installed, or
    AITER's, which an image's environment may ask for (srv-2c445521: 3 GiB). More:
    the estimate of graphs and the other sampler, where options that are not read (plugins,
    processors of logits) send a model back to the first runner (0.26's config/vllm.py; log227);
    workspaces of fused all-reduces where no start shows whether they still count; where memory is
    the CPU's too and not NVIDIA's, what the host takes. Either: what another driver reports.
    """
    share = float(settings.flags.get("gpu_memory_utilization", settings.rules.utilization))
    memory = gpu.memory_bytes
    reported = (memory, *gpu.other_memory_bytes)
    less = round(share * (max(reported) - memory))
    more = round(share * (memory - min(reported)))
    if gpu.unified_memory and not settings.host_pages:
        more += round(_HOST_SHARE * memory)
    if may_sort_nothing(settings):
        sizes = quantities(model, settings)
        less += _peak(sizes, sampler_bytes(model, settings)) - _peak(sizes, least_sampler())
    more += unseen_fusion(settings, memory)
    told = settings.flags.get("use_v2_model_runner") is not None
    if on_second_runner(model, settings) and not told:
        sizes, graphs = quantities(model, settings), graph_part(model, settings)
        own = _peak(sizes, sampler_bytes(model, settings))
        more += _peak(sizes, fitted_sampler(settings)) - own
        more += graphs.value if graphs is not None else 0
    return less, more


def _peak(sizes: Quantities, each: float) -> int:
    """What the run holds at most with a sampler of so many bytes per logit."""
    decoder = max(round(sizes.logits * each), sizes.layer_bytes) + sizes.held_bytes
    return max(decoder, sizes.image_bytes)


def run_parts(model: Model, settings: Settings, memory: int) -> tuple[Part, ...]:
    """The parts of the profiling run on one rank of a GPU of `memory` bytes."""
    sizes = quantities(model, settings)
    each = sampler_bytes(model, settings)
    parts = [_activation(settings, sizes, each), framework(settings)]
    if settings.ranks > 1:
        parts.append(communication(settings, memory))
    if sizes.experts:
        parts.append(_experts(model, settings, sizes))
    if sizes.workspace:
        parts.append(_workspace(settings, sizes))
    if sizes.encoders:
        parts.append(_encoders())
    if settings.host_pages:
        parts.append(_host_pages(settings, memory))
    return tuple(parts)


def host_bytes(settings: Settings, memory: int) -> int:
    """What free memory loses to the system, mostly pages of the files that the load reads.

    Two looks at what is free take it for the engine's (utils/mem_utils.py, MemorySnapshot.measure).
    """
    return round(_HOST_SHARE * memory) if settings.host_pages else 0


def _host_pages(settings: Settings, memory: int) -> Part:
    formula = f"{_HOST_SHARE:g} of memory that is the CPU's too: files that are read (public logs)"
    held, doubt = host_bytes(settings, memory) / GIB, _HOST_DOUBT * memory / GIB
    return part("pages of the host", held, formula, doubt)


def _activation(settings: Settings, sizes: Quantities, each: float) -> Part:
    sampler = round(sizes.logits * each)
    decoder = max(sampler, sizes.layer_bytes) + sizes.held_bytes
    layer, image, kept, *_ = sizes.words
    if sizes.image_bytes > decoder:
        formula = f"a largest image through the encoder: {image} = {sizes.image_bytes:,} B"
        return _activations(sizes.image_bytes, formula, 0.15)
    held = f" + {kept} of an image held meanwhile" if sizes.held_bytes else ""
    if sampler >= sizes.layer_bytes:
        logits = f"{sizes.logits:,} logits ({_sampled(settings):,} rows)"
        formula = f"dummy sampler: {logits} x {each:g} B{held} = {decoder:,} B"
        return _activations(decoder, formula, _SAMPLER_DOUBT)
    rests = f"; residual streams' copies rest on {_ONE_START}" if sizes.mixed_streams else ""
    formula = (
        f"a batch of {settings.max_num_batched_tokens:,} tokens through the layer that holds most: "
        f"{layer}{held} = {decoder:,} B{rests}"
    )
    return _activations(decoder, formula, 0.3 if sizes.mixed_streams else 0.15)


def _activations(value: int, formula: str, doubt: float) -> Part:
    return Part(name="activations", value=value, formula=formula, doubt=doubt * value)


def _experts(model: Model, settings: Settings, sizes: Quantities) -> Part:
    formula = (
        f"kept by the kernel ({kernel_of(model, settings)}) for "
        f"{settings.max_num_batched_tokens:,} tokens in {model.experts_per_token} experts each: "
        f"{sizes.words[3]} = {sizes.experts:,} B"
    )
    doubt = 0.2 * sizes.experts
    return Part(name="experts' workspace", value=sizes.experts, formula=formula, doubt=doubt)


def _workspace(settings: Settings, sizes: Quantities) -> Part:
    formula = (
        f"rows gathered for sequences of up to {settings.max_model_len:,} tokens: "
        f"{sizes.words[4]} = {sizes.workspace:,} B"
    )
    doubt = 0.2 * sizes.workspace
    return Part(name="sparse attention's workspace", value=sizes.workspace, formula=formula,
                doubt=doubt)  # fmt: skip


def _encoders() -> Part:
    value = float(constants()["encoders_gib"])
    return part("encoder profiling", value, f"{value:g} GiB (fitted)", 0.5 * value)
