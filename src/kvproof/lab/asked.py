"""What a client of the lab's server asks for, checked: OpenAI's completion parameters."""

from __future__ import annotations

import re
import uuid
from typing import Any

import msgspec

from kvproof.errors import UsageError
from kvproof.lab.sampling import Sampling

_MOST_STOPS = 4  # OpenAI's own limit
# What clients may send of parameters that this server does not follow: that they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,), "best_of": (1,), "logprobs": (False, 0), "top_logprobs": (0,), "echo": (False,),
    "suffix": ("",), "presence_penalty": (0,), "frequency_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "top_k": (0, -1), "min_p": (0,),
    "tools": ([],), "functions": ([],), "response_format": ({"type": "text"},),
}  # fmt: skip
_DEFAULT_COUNT = 64
_HALVES = re.compile("[\ud800-\udfff]")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One completion: the prompt's token ids and everything that shapes the answer."""

    chat: bool
    prompt: list[int]
    count: int
    sampling: Sampling
    stops: tuple[str, ...]
    ignore_end: bool
    stream: bool
    stream_usage: bool
    name: str

    def usage(self, made: int) -> dict[str, int]:
        """OpenAI's count of tokens."""
        asked = len(self.prompt)
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def asked_of(body: dict[str, Any], tokenizer: Any, *, chat: bool) -> Asked:
    """The request in a body of JSON. UsageError for what is wrong or not offered."""
    for name, neutral in _NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise UsageError(f"this server does not follow {name}", hint="leave it out")
    options = body.get("stream_options")
    return Asked(
        chat=chat,
        prompt=_prompt(body, tokenizer, chat=chat),
        count=_count(body),
        sampling=Sampling(
            temperature=_number(body, "temperature", 0.0), top_p=_number(body, "top_p", 1.0),
            seed=_seed(body),
        ),
        stops=_stops(body),
        ignore_end=body.get("ignore_eos") is True,
        stream=body.get("stream") is True,
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
        name=f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
    )  # fmt: skip


def _prompt(body: dict[str, Any], tokenizer: Any, *, chat: bool) -> list[int]:
    if not chat:
        text = body.get("prompt")
        if isinstance(text, list) and len(text) == 1:
            text = text[0]
        if not _is_text(text):
            raise UsageError("prompt is no text", hint="send one text a request")
        ids: list[int] = tokenizer.encode(text)
        return ids
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UsageError("messages is no list of one message or more")
    conversation: list[int] = tokenizer.chat([_message(message) for message in messages])
    return conversation


def _message(message: object) -> dict[str, str]:
    """Role and text of a message, whose content may be a text or a list of parts of text."""
    given = message if isinstance(message, dict) else {}
    role, content = given.get("role"), given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [p.get("text") for p in parts if isinstance(p, dict) and p.get("type") == "text"]
    if len(texts) != len(parts) or not all(map(_is_text, [role, *texts])):
        raise UsageError("messages need a role and a text each")
    return {"role": str(role), "content": "".join(map(str, texts))}


def _is_text(value: object) -> bool:
    """Whether it is a text that can be written as UTF-8 (JSON may hold halves of a pair)."""
    return isinstance(value, str) and not _HALVES.search(value)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(body: dict[str, Any]) -> int:
    given = [body.get(name) for name in ("max_completion_tokens", "max_tokens")]
    count = next((number for number in given if number is not None), _DEFAULT_COUNT)
    if not _whole(count):
        raise UsageError("max_tokens is no whole number")
    return int(count)


def _seed(body: dict[str, Any]) -> int | None:
    seed = body.get("seed")
    if seed is not None and not _whole(seed):
        raise UsageError("seed is no whole number")
    return seed


def _number(body: dict[str, Any], key: str, default: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{key} is no number")
    return float(value)


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    given = [] if stop is None else [stop] if isinstance(stop, str) else stop
    fine = isinstance(given, list) and all(isinstance(s, str) and s for s in given)
    if not fine or len(given) > _MOST_STOPS:
        raise UsageError(f"stop is no text and no list of up to {_MOST_STOPS} texts")
    return tuple(given)
