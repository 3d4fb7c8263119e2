"""Stored: keys or values that lie in the pool, handed to transformers as if they were a tensor.

A cache's `update` must answer with tensors of all keys and values. Gathering them for every step
copies the whole cache; so a one-token step gets a `Stored`, which knows its shape
and type. transformers' SDPA function is registered anew once: meeting a `Stored` it runs the lab's
decode kernel on the blocks in place, and does everything else as before. Any other operation that
meets a `Stored` gathers it first, so that models with an attention of their own work as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kvproof.lab.attention import View, attend

_DESCRIBES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_meta"}
_ASKS = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.is_floating_point}


class Stored(torch.Tensor):  # type: ignore[misc]
    """[batch, heads, entries, dim] of one slot, gathered by `gather` only when it must be."""

    view_of: View
    slot: int
    gather: Callable[[], torch.Tensor]

    @staticmethod
    def of(
        view: View,
        slot: int,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        gather: Callable[[], torch.Tensor],
    ) -> Stored:
        """A stand-in of this shape; it holds one number."""
        base = torch.empty((), dtype=dtype).expand(shape)
        out: Stored = torch.Tensor._make_subclass(Stored, base)
        out.view_of, out.slot, out.gather = view, slot, gather
        return out

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Describe itself without gathering; for anything else be the gathered tensor."""
        owner = getattr(func, "__self__", None)
        if func in _ASKS or getattr(owner, "__name__", None) in _DESCRIBES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        args, kwargs = tree_map(_plain, (args, kwargs or {}))
        return func(*args, **kwargs)


def _plain(x: Any) -> Any:
    return x.gather() if isinstance(x, Stored) else x


def _sees_all(mask: torch.Tensor | None) -> bool:
    """Whether a one-token step's mask hides nothing (padding would)."""
    return mask is None or (mask.dtype == torch.bool and bool(mask.all()))


@lru_cache(maxsize=1)
def register() -> None:
    """Let transformers' SDPA attention read `Stored` entries in place; once a process."""
    from transformers import AttentionInterface

    plain = AttentionInterface()["sdpa"]

    def sdpa(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **rest: Any,
    ) -> tuple[torch.Tensor, None]:
        extras = any(rest.get(name) is not None for name in ("position_bias", "softcap", "s_aux"))
        whole = isinstance(key, Stored) and isinstance(value, Stored)
        if not whole or extras or dropout or not _sees_all(attention_mask):
            answer: tuple[torch.Tensor, None] = plain(
                module, query, _plain(key), _plain(value), attention_mask,
                dropout=dropout, scaling=scaling, **rest,
            )  # fmt: skip
            return answer
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = attend(key.view_of, key.slot, query[:, :, 0], scale=scale, v_dim=value.shape[-1])
        return out[:, None], None

    AttentionInterface.register("sdpa", sdpa)
