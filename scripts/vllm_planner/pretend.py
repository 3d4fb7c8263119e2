"""Let vLLM's CUDA planning code run where there is no GPU.

The CPU build of vLLM carries the whole CUDA platform in Python; what it lacks is a device and
compiled kernels. `become` answers the questions that planning asks of a device (name,
capability, memory) and puts empty modules where kernels would be, so that backend choice, block
sizes and layouts are those of the CUDA build. Nothing is computed on it.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    capability: tuple[int, int]
    name: str
    memory: int
    processors: int
    reported: bool = True
    """Whether NVML tells the memory."""


GPUS = {
    "T4": Gpu((7, 5), "Tesla T4", 15_636_365_312, 40),
    "A100-80GB": Gpu((8, 0), "NVIDIA A100-SXM4-80GB", 85_899_345_920, 108),
    "A10G-24GB": Gpu((8, 6), "NVIDIA A10G", 23_684_186_112, 80),
    "Jetson-AGX-Orin-64GB": Gpu((8, 7), "Orin", 65_878_884_352, 16),
    "L40S": Gpu((8, 9), "NVIDIA L40S", 48_305_799_168, 142),
    "H100-80GB": Gpu((9, 0), "NVIDIA H100 80GB HBM3", 85_520_809_984, 132),
    "H200": Gpu((9, 0), "NVIDIA H200", 150_754_820_096, 132),
    "B200": Gpu((10, 0), "NVIDIA B200", 192_265_846_784, 148),
    "B300-288GB": Gpu((10, 3), "NVIDIA B300 SXM6 AC", 287_429_948_867, 148),
    "Jetson-Thor-128GB": Gpu((11, 0), "NVIDIA Thor", 131_856_334_848, 20),
    "RTX-5090-32GB": Gpu((12, 0), "NVIDIA GeForce RTX 5090", 33_668_726_784, 170),
    "GB10-128GB": Gpu((12, 1), "NVIDIA GB10", 130_663_055_360, 48, reported=False),
}
"""A GPU of every compute capability that the CUDA build has kernels for."""

_EMPTY = (
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm._flashkda_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm.cumem_allocator",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.deep_gemm",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.models.kimi_k3.nvidia.ops.latent_moe_tail",
)
_FLASHINFER = "0.7.0.post1"
"""The release of FlashInfer that the CUDA wheel of vLLM 0.32.0 depends on (its metadata)."""
_KERNEL_LANGUAGES = ("cuda", "tilelang", "cutlass", "quack", "vllm.vllm_flash_attn.cute")
_HOLLOW = ("flashinfer", "tokenspeed_mla")
"""Packages that the CUDA wheel depends on and whose kernels planning only names."""
_ABSENT = ("torchaudio", "torchcodec")
"""Packages of CUDA builds that would break the import of transformers here."""
_OPERATORS = (
    "_C",
    "_moe_C",
    "_C_cache_ops",
    "_flashmla_C",
    "_flashkda_C",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
)
_OFF = ("VLLM_USE_DIRECT_DCP_Q_GATHER", "VLLM_USE_DIRECT_DCP_A2A", "VLLM_USE_DIRECT_DCP_KV_GATHER")


class Hollow:
    """Stands where a kernel would be: can be named and passed on, never called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Hollow:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise RuntimeError(f"{self.__name__} needs a GPU")


class _HollowType(type):
    def __getattr__(cls, name: str) -> Hollow:
        if name.startswith("_"):
            raise AttributeError(name)
        return Hollow(f"{cls.__name__}.{name}")


def _hollow_attribute(module: str, name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    if name[0].isupper():
        return _HollowType(name, (), {"__module__": module})
    return Hollow(f"{module}.{name}")


def _is_kernel_language(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in _KERNEL_LANGUAGES)


class _InertType(type):
    def __getattr__(cls, name: str) -> Inert:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{cls.__name__}.{name}")

    def __getitem__(cls, key: object) -> _InertType:
        return cls

    def __call__(cls, *args: object, **kwargs: object) -> Inert:
        return Inert(cls.__name__)


def _package_attribute(module: str, name: str) -> object:
    if _is_kernel_language(module) and not name.startswith("__"):
        if name[0].isupper() or name.endswith("_t"):
            return _InertType(name, (), {"__module__": module})
        return Inert(f"{module}.{name}")
    return _hollow_attribute(module, name)


class Inert(Hollow):
    """Stands where a kernel language is: decorates, subscripts and combines, and does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and (isinstance(args[0], type) or callable(args[0])):
            return args[0]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert(f"{self.__name__}.{name}")

    def __getitem__(self, key: object) -> Inert:
        return self

    def __or__(self, other: object) -> Any:
        return Any

    __ror__ = __or__
    __mul__ = __add__ = __sub__ = __rmul__ = __radd__ = lambda self, other: self
    __floordiv__ = __truediv__ = __mod__ = __lshift__ = lambda self, other: self
    __rfloordiv__ = __rtruediv__ = __rmod__ = __rsub__ = lambda self, other: self

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)


class _Envelope:
    """FlashInfer's table of sparse kernels of consumer Blackwell: since 0.7.0 every usual shape."""

    def __contains__(self, shape: object) -> bool:
        return True


class _LatentWrapper:
    """FlashInfer's class whose signature vLLM reads: scales of fp8 latents, since 0.6.18."""

    def run(self, *args: object, ckv_scale_arr: object = None) -> None:
        raise RuntimeError("FlashInfer needs a GPU")


class _FusedTail:
    """Stands where Kimi-K3's fused end of its experts is: kernels that no plan depends on."""

    contract = types.SimpleNamespace(max_num_tokens=64)

    @classmethod
    def initialize(cls, **kwargs: object) -> _FusedTail:
        return cls()


class _HollowPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that the CUDA wheel depends on and that only kernels need."""

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name.startswith("cuda.core"):
            return None
        if _is_kernel_language(name) or name.split(".")[0] in _HOLLOW:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = _FLASHINFER
        module.__getattr__ = lambda name: _package_attribute(spec.name, name)
        if spec.name == "flashinfer.mla":
            module.BatchMLAPagedAttentionWrapper = _LatentWrapper
        if spec.name == "flashinfer.mla._sparse_mla_sm120":
            module._DECODE_DSV4_DISPATCH = _Envelope()
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def become(gpu: str) -> None:
    """Make this process plan as on `gpu`, or on its own "CPU"; call before vllm is imported."""
    os.environ.update({name: "0" for name in _OFF})
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    _let_vision_be()
    if gpu == "CPU":
        _inspect_here()
        return
    what = GPUS[gpu]
    with contextlib.suppress(ImportError):
        import tvm_ffi  # noqa: F401  (looks for a real CUDA when it is first imported)
    sys.modules.update(dict.fromkeys(_ABSENT))
    sys.meta_path.insert(0, _HollowPackages())
    _add_empty_modules()
    _replace_torch(what)
    _replace_platform(what)
    import vllm._custom_ops  # noqa: F401  (its own availability checks come first)

    _hollow_operators(what)
    _allow_kernels()
    _inspect_here()


def _let_vision_be() -> None:
    """Import torchvision without its compiled operators: processors only name its transforms."""
    import torch

    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
        )
    try:
        import torchvision  # noqa: F401
    except ImportError:
        sys.modules["torchvision"] = None


def _inspect_here() -> None:
    """vLLM asks a fresh process what a model class can do, seconds for each; this one knows."""
    import vllm.model_executor.models.registry as registry

    registry._run_in_subprocess = lambda question: question()


def _add_empty_modules() -> None:
    for name in _EMPTY:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        if name.endswith("flash_mla_interface"):
            module.__getattr__ = lambda attribute: _hollow_attribute("flash_mla", attribute)
        if name.endswith("latent_moe_tail"):
            module.KimiK3LatentMoETailOp = _FusedTail
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent in _EMPTY:
            setattr(sys.modules[parent], child, module)


def _replace_torch(what: Gpu) -> None:
    import torch

    torch.version.cuda = torch.version.cuda or "13.0"
    record = types.SimpleNamespace(
        name=what.name, total_memory=what.memory, multi_processor_count=what.processors,
        major=what.capability[0], minor=what.capability[1], is_integrated=False, warp_size=32,
        L2_cache_size=50 * 2**20, shared_memory_per_block_optin=232_448, gcnArchName="",
        max_threads_per_multi_processor=2048, regs_per_multiprocessor=65_536,
    )  # fmt: skip
    answers: dict[str, object] = {
        "get_device_properties": record, "get_device_capability": what.capability,
        "get_device_name": what.name, "current_device": 0, "device_count": 16,
        "mem_get_info": (what.memory, what.memory), "synchronize": None, "empty_cache": None,
    }  # fmt: skip
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *a, _value=value, **k: _value)
    for name, value in (("current_device_index", 0), ("device_count", 16)):
        setattr(torch.accelerator, name, lambda *a, _value=value, **k: _value)
    for name in ("empty_cache", "synchronize"):
        setattr(torch.accelerator, name, lambda *a, **k: None)
    torch.cuda.Stream = torch.cuda.Event = _Stream
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *a, **k: _Stream()


class _Stream:
    cuda_stream = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: None


def _replace_platform(what: Gpu) -> None:
    import vllm.platforms as platforms

    platforms.vllm_version_matches_substr = lambda text: False
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    answers = {
        "get_device_capability": DeviceCapability(*what.capability),
        "get_device_name": what.name,
        "get_device_uuid": "GPU-pretended",
        "is_fully_connected": True,
        "device_count": 16,
        "num_compute_units": what.processors,
        "is_integrated_gpu": False,
        "is_arch_support_pdl": what.capability[0] >= 9,
        "set_device": None,
        "import_kernels": None,
        "is_pin_memory_available": False,
    }
    methods = {
        name: classmethod(lambda cls, *a, _value=value, **k: _value)
        for name, value in answers.items()
    }
    methods["get_device_total_memory"] = classmethod(lambda cls, *a, **k: _told(what))
    platforms._current_platform = type("PretendedCuda", (CudaPlatformBase,), methods)()


def _told(what: Gpu) -> int:
    if not what.reported:
        raise RuntimeError("Not Supported")  # pynvml.NVMLError_NotSupported
    return what.memory


def _hollow_operators(what: Gpu) -> None:
    import torch

    spaces = torch._ops._OpNamespace
    own = spaces.__getattr__

    def answer(self: Any, key: str) -> Any:
        if self.name == "_C" and "_supports_" in key:
            return lambda *a, **k: what.capability[0] >= 9
        if key == "get_workspace_size":
            return lambda *a, **k: 0
        try:
            return own(self, key)
        except AttributeError:
            if self.name in _OPERATORS and not key.startswith("__"):
                return Hollow(f"{self.name}::{key}")
            raise

    spaces.__getattr__ = answer


def _allow_kernels() -> None:
    """Kernels whose presence is a file or a download in the official wheel."""
    import vllm.utils.flashinfer as infer
    import vllm.vllm_flash_attn.flash_attn_interface as flash

    flash.FA4_AVAILABLE, flash.FA4_UNAVAILABLE_REASON = True, None
    infer.has_nvidia_artifactory = lambda: True
