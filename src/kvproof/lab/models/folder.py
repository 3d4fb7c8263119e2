"""A causal model of transformers in a folder, as a runner: its own layers, the lab's caches.

transformers' attention interface lets a function be chosen by name. The lab's hands every layer's
queries, keys and values to the step of the pass, which stores them and attends as for any runner.
Tokens of several sequences go through in one row: only attention mixes them, which is the step's.

Layers of full and sliding attention run so, with keys and values of one width; other models run
through transformers' own `generate` with a `PagedCache`. Weights are read from safetensors only and
no code of the folder is executed.
"""

# mypy: disable-error-code=import-not-found

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from kvproof.errors import InputError, UsageError
from kvproof.kinds import FullSlot, SlidingSlot
from kvproof.lab.models.body import Body
from kvproof.lab.models.runner import Runner, Step

_NAME = "kvproof_lab"
_HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_OTHERWISE = "run it in transformers with past_key_values=kvproof.lab.PagedCache(model.config)"
_pass: ContextVar[tuple[Step, Body]] = ContextVar("pass")


class FolderRunner(Runner):
    """A transformers model whose attention is the step's."""

    def __init__(self, model: Any, body: Body) -> None:
        self.model, self.body = model, body
        self.weights = {}
        self.dtype = model.dtype
        self._keeps = "logits_to_keep" in signature(model.forward).parameters

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, step: Step, *, rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits [rows, vocab] of the chosen rows of `tokens` (flat over sequences)."""
        given = {"input_ids": tokens[None], "position_ids": positions[None], "use_cache": False}
        if self._keeps:
            given["logits_to_keep"] = rows
        with torch.inference_mode(), _in_pass(step, self.body):
            logits: torch.Tensor = self.model(**given).logits[0]
            return (logits if self._keeps else logits[rows]).float()


@contextmanager
def _in_pass(step: Step, body: Body) -> Iterator[None]:
    before = _pass.set((step, body))
    try:
        yield
    finally:
        _pass.reset(before)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _mask: object,
    scaling: float | None = None,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' form of an attention function, [1, heads, tokens, dim] each."""
    for extra in ("position_bias", "softcap", "s_aux"):
        if rest.get(extra) is not None:
            raise UsageError(f"the lab's step has no {extra} in attention", hint=_OTHERWISE)
    step, body = _pass.get()
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    if scaling is not None:
        q = q * (scaling / body.scale)
    return step.attend(module.layer_idx, q, (k, v), body)[None], None


@lru_cache(maxsize=1)
def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, _attend)


def body_of(folder: Path) -> Body:
    """The body of a folder's config. UsageError for layers that the lab's loop does not run."""
    from transformers import AutoConfig

    from kvproof.api import load_model

    model = load_model(str(folder))
    slots = [slot for slot in model.slots if type(slot) in (FullSlot, SlidingSlot)]
    if other := [slot.kind for slot in model.slots if slot not in slots]:
        raise UsageError(f"{folder}: the lab's loop does not run {other[0]} slots", hint=_OTHERWISE)
    config = _made(folder, lambda: AutoConfig.from_pretrained(folder, **_HERE))
    config = config.get_text_config(decoder=True)
    first: Any = slots[0]
    body = Body(
        name=model.name or folder.name,
        layers=len(model.slots),
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=first.kv_heads,
        head_dim=first.k_dim,
        ffn=getattr(config, "intermediate_size", None) or 0,
        vocab=config.vocab_size,
        context=getattr(config, "max_position_embeddings", None) or 2048,
        windows=tuple(getattr(s, "window", None) for s in model.slots),
    )
    if body.slots != model.slots:
        raise UsageError(
            f"{folder}: the lab's loop runs one attention a layer, all of one width",
            hint=_OTHERWISE,
        )
    return body


def load_folder(folder: Path, dtype: torch.dtype) -> Runner:
    """The folder's model in `dtype`. InputError for weights that transformers can't read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    body = body_of(folder)
    config = _made(folder, lambda: AutoConfig.from_pretrained(folder, **_HERE))
    kind = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if kind is not None and not kind._supports_attention_backend:
        name = config.model_type
        raise UsageError(f"{folder}: {name} has an attention of its own", hint=_OTHERWISE)
    _register()
    model = _made(folder, lambda: AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=_NAME, use_safetensors=True, **_HERE
    ))  # fmt: skip
    return FolderRunner(model.eval(), body)


def _made(folder: Path, make: Any) -> Any:
    """What transformers makes of a folder; its faults as one line."""
    try:
        return make()
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "no word")
        raise InputError(f"{folder}: transformers can't load it: {said[:200]}") from None


class FolderTokenizer:
    """The tokenizer.json of a folder; `stop` is the id that ends an answer."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoConfig

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UsageError(f"no file {path}", hint="save the tokenizer beside the weights")
        self._fast = _made(folder, lambda: Tokenizer.from_file(str(path)))
        end = _made(folder, lambda: AutoConfig.from_pretrained(folder, **_HERE)).eos_token_id
        ends = end if isinstance(end, list) else [end]
        self.stop: int = -1 if ends[0] is None else ends[0]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the start token where the file says so."""
        ids: list[int] = self._fast.encode(text).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        text: str = self._fast.decode(tokens)
        return text

    def chat(self, messages: object) -> list[int]:
        """Refused: a folder's chat template is a program, and is not run."""
        raise UsageError("this model takes prompts, no conversations", hint="use /v1/completions")
