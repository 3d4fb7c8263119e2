"""Bytes that the dummy sampler of the profiling run takes for a logit, by release and kernels.

Source: vLLM 0.9 to 0.32, v1/sample/ops/topk_topp_sampler.py, v1/worker/gpu/sample/sampler.py.
"""

from __future__ import annotations

from kvproof.engine.vllm.parts import constants
from kvproof.engine.vllm.rocm import uses_aiter
from kvproof.engine.vllm.runners import second_runner
from kvproof.engine.vllm.settings import Settings
from kvproof.model.types import Model

_FLASHINFER = 12.0
"""Logits in 16 bits, their f32 copy, probabilities: 38.6 less the 25 to 27 B that three models'
starts of 0.11.0 on H200 leave (srv-900da89b, srv-6ed5bda5, srv-b5b1da6d)."""
_FLASHINFER_SINCE, _FLASHINFER_PAST = (0, 8, 0), (0, 11, 1)
"""Releases whose V1 samples with FlashInfer's kernels where they are installed."""
_AITER_SINCE, _AITER_PAST = (0, 12, 0), (0, 14, 0)
"""Releases that sample with AITER's kernels where those are asked for."""
_NO_COPY = (0, 28, 0)
"""Since when the second runner copies logits to f32 only where a request needs it."""
_NO_SORT = (0, 17, 0)
"""Since when a kernel of Triton's cuts to top-k and top-p without a sort (read in 0.17.0; 0.16.0
sorts)."""


def sampler_bytes(model: Model, settings: Settings) -> float:
    """Bytes per logit of the dummy sampler: sorting for top-p was dropped in 0.17."""
    known = known_sampler(model, settings)
    if known is not None:
        return known
    return fitted_sampler(settings)


def fitted_sampler(settings: Settings) -> float:
    """Bytes per logit of the first runner's own kernels, as starts printed them."""
    return float(constants()["sampler_bytes_per_logit"][sampler_era(settings)])


def sampler_era(settings: Settings) -> str:
    """The name of the constant for the release: with or without a sort."""
    return "since_0.17" if settings.rules.version >= _NO_SORT else "before_0.17"


def known_sampler(model: Model, settings: Settings) -> float | None:
    """Bytes per logit where the source gives them; None where starts have to.

    The second runner's dummies ask for no top-p: logits in 16 bits, gathered from several ranks and
    put in order, and until 0.27 copied to f32 (v1/worker/gpu/sample/sampler.py, read from 0.22 on).
    FlashInfer's kernels sort nothing. V1 took them up to 0.11.0 where they were installed, as in
    the images; only VLLM_USE_FLASHINFER_SAMPLER says so here. Nor do AITER's, which 0.12 and
    0.13 took beside its other kernels (v1/sample/ops/topk_topp_sampler.py).
    """
    if second_runner(model, settings):
        gathered = 2.0 if settings.ranks == 1 else 4.0 + 2.0 / settings.ranks
        return max(gathered, 6.0) if settings.rules.version < _NO_COPY else gathered
    asked = settings.flags.get("flashinfer_sampler") and settings.rules.v1
    aiter = uses_aiter(settings) and _AITER_SINCE <= settings.rules.version < _AITER_PAST
    if asked or aiter:
        return min(_FLASHINFER, float(constants()["sampler_bytes_per_logit"]["since_0.17"]))
    return None


def may_sort_nothing(settings: Settings) -> bool:
    """Whether kernels that are not said to be there may sample: FlashInfer's, on AMD AITER's."""
    version, flags = settings.rules.version, settings.flags
    if settings.platform == "rocm":
        return flags.get("rocm_aiter") is None and _AITER_SINCE <= version < _AITER_PAST
    asked = flags.get("flashinfer_sampler") is not None or settings.platform != "cuda"
    return settings.rules.v1 and not asked and _FLASHINFER_SINCE <= version < _FLASHINFER_PAST


def least_sampler() -> float:
    """Bytes per logit with kernels that sort nothing."""
    return _FLASHINFER
