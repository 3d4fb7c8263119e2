"""What the experiments run on: the default model, its tokenizer, the bundled text."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import torch

from kvproof.kinds import ELEMENT_TYPES, Slot, Types
from kvproof.lab.attention import View
from kvproof.lab.models.body import Body
from kvproof.lab.models.runner import Runner
from kvproof.lab.models.sources import default_weights, load
from kvproof.lab.models.tokenizer import Tokenizer
from kvproof.lab.pool.pool import PagedPool
from kvproof.lab.steps import type_name
from kvproof.model.types import Model


@lru_cache(maxsize=1)
def smollm() -> Runner:
    """SmolLM2-135M-Instruct in f32."""
    return load()


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer."""
    return Tokenizer()


def text() -> str:
    """The beginning of Alice's Adventures in Wonderland (Carroll, 1865; public domain)."""
    return files("kvproof.lab").joinpath("data/alice.txt").read_text(encoding="utf-8")


def text_tokens(count: int) -> list[int]:
    """`count` token ids of the text, repeated from the start when it is shorter."""
    tokens = tokenizer().encode(text())
    return (tokens * (count // len(tokens) + 1))[:count]


@lru_cache(maxsize=1)
def planned_model() -> Model:
    """The default model as kvproof describes it, from the metadata of its GGUF file."""
    from kvproof.api import load_model

    return load_model(str(default_weights()))


def streamed_bytes(runner: Runner) -> int:
    """Weight bytes of a decode step: every parameter once, tied embeddings as the output's."""
    return int(planned_model().parameters * ELEMENT_TYPES[type_name(runner.dtype)].bits / 8)


def planned_slots(body: Body | None = None) -> tuple[Slot, ...]:
    """The slots as kvproof plans them: from the body's config, or from the GGUF file itself."""
    from kvproof.api import load_model

    return planned_model().slots if body is None else load_model(body.config).slots


def planned_block(slots: tuple[Slot, ...], types: Types, block_size: int) -> int:
    """Bytes of one block of every slot, by the plan's own rules for kinds and element types."""
    return sum(block_size * s.entry_bytes(types) + s.fixed_bytes(types) for s in slots)


def fill(pool: PagedPool, slot: int, length: int, seed: int = 0) -> View:
    """A sequence of `length` random entries in one slot; the view of its last one."""
    made = torch.Generator().manual_seed(seed)
    sequence, _ = pool.open()
    view = None
    for count in (length - 1, 1):
        pool.append(sequence, count)
        view = View(pool, [sequence], [count])
        _, planes = view.planes(slot)
        view.write(slot, *(torch.randn(count, p.heads, p.dim, generator=made) for p in planes))
    assert view is not None  # noqa: S101 - the loop ran
    return view
