"""`--override-tensor`: patterns of tensors' names and the device that they go to.

Source: parse_tensor_buffer_overrides (common/arg.cpp) and create_tensor (llama-model.cpp), b11549:
the first pattern that is found in a tensor's GGUF name decides.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kvproof.errors import UsageError
from kvproof.model.tensors import TensorGroup

HOST = -1
_MOST, _LONGEST = 256, 400
_ON_HOST = re.compile(r"^(?:CPU(?:_REPACK|_Mapped)?|\w+_Host)$")
_ON_GPU = re.compile(r"^(?:CUDA|ROCm|HIP|Vulkan|SYCL|MUSA|MTL|Metal|CANN)(\d{0,3})$")
# Repetition of what already repeats can take a matcher for ever.
_ENDLESS = re.compile(r"[*+}][^()]*\)\s*[*+{]|\([^)]*\|[^)]*\)\s*[*+{]")
# The end of a GGUF tensor's name, by role and by what stands in the name of a published checkpoint;
# the first that is found in it. Names of GGUF files stand for themselves.
_NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "expert": (("gate_up", "ffn_gate_up_exps"), ("down", "ffn_down_exps"), ("w2", "ffn_down_exps"),
               ("up", "ffn_up_exps"), ("w3", "ffn_up_exps"), ("", "ffn_gate_exps")),
    "shared_expert": (("gate_up", "ffn_gate_up_shexp"), ("down", "ffn_down_shexp"),
                      ("up", "ffn_up_shexp"), ("", "ffn_gate_shexp")),
    "mlp": (("gate_up", "ffn_up"), ("down", "ffn_down"), ("up", "ffn_up"), ("", "ffn_gate")),
    "router": (("", "ffn_gate_inp"),),
    "attention": (("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm"), ("qkv", "attn_qkv"),
                  ("q_a", "attn_q_a"), ("q_b", "attn_q_b"), ("kv_a", "attn_kv_a_mqa"),
                  ("kv_b", "attn_kv_b"), ("q_proj", "attn_q"), ("k_proj", "attn_k"),
                  ("v_proj", "attn_v"), ("", "attn_output")),
    "norm": (("input", "attn_norm"), ("", "ffn_norm")),
    "mixer": (("conv", "ssm_conv1d"), ("out", "ssm_out"), ("", "ssm_in")),
}  # fmt: skip


class Override(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors whose name holds `pattern` are on `device` (HOST, or a GPU's number)."""

    pattern: str
    device: int


def read_overrides(key: str, value: Any) -> tuple[Override, ...]:
    """The rules of one `--override-tensor`: `pattern=buffer`, several behind commas."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    if len(parts) > _MOST:
        raise UsageError(f"{key} has {len(parts):,} rules", hint=f"give up to {_MOST}")
    return tuple(_rule(key, str(part)) for part in parts if str(part))


def _rule(key: str, text: str) -> Override:
    pattern, equals, buffer = text.rpartition("=")
    if not equals or not pattern or len(pattern) > _LONGEST:
        raise UsageError(f"{key} is {text[:60]!r}", hint="want PATTERN=BUFFER, as in exps=CPU")
    if _ENDLESS.search(pattern):
        raise UsageError(
            f"{key}: {pattern[:60]!r} repeats what repeats or branches", hint="write it plainer"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        raise UsageError(
            f"{key}: {pattern[:60]!r} is no regular expression", hint="mend its brackets"
        ) from None
    return Override(pattern=pattern, device=_device(key, buffer.strip()))


def _device(key: str, buffer: str) -> int:
    if _ON_HOST.match(buffer):
        return HOST
    found = _ON_GPU.match(buffer)
    if found is None:
        raise UsageError(
            f"{key}: {buffer[:40]!r} is no buffer that is known here",
            hint="name CPU or a GPU such as CUDA0; GPUs of other machines are not computed",
        )
    return int(found[1] or 0)


def overridden(rules: tuple[Override, ...], group: TensorGroup, layer: int | None) -> int | None:
    """The device that the rules give a tensor of `group`, None where none is for it."""
    if not rules:
        return None
    name = _gguf_name(group, layer)
    return next((rule.device for rule in rules if re.search(rule.pattern, name)), None)


def _gguf_name(group: TensorGroup, layer: int | None) -> str:
    """The tensor's name in a GGUF file."""
    if layer is None:
        if group.role in ("embedding", "position"):
            return "token_embd.weight"
        return "output_norm.weight" if group.role == "norm" else "output.weight"
    if group.name.startswith("blk."):
        return group.name.replace("{}", str(layer), 1)
    endings = _NAMES.get(group.role, (("", group.name.rpartition(".")[0].rpartition(".")[2]),))
    ending = next(new for old, new in endings if old in group.name)
    return f"blk.{layer}.{ending}.weight"
