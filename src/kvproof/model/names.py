"""How people write where a model is on the hub: names, revisions, files, tags and addresses."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

import msgspec

from kvproof.errors import ModelError

_PART = r"[\w.-]{1,96}"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})"
    r"(?:@(?P<revision>refs/pr/\d{1,9}|[\w.-]{1,100}))?"
    r"(?:/(?P<file>[\w./+=-]{1,300}))?"
    r"(?::(?P<tag>[\w.-]{1,60}))?$"
)
_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "hf-mirror.com")
_VERBS = ("tree", "blob", "resolve", "raw", "commit", "commits")
_LONGEST = 1_000


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    """A hub repository, and what of it is meant.

    `file` is a GGUF file of it, `folder` a folder of such files, `tag` the quantization that a
    file's name ends in (`Q4_K_M`; `latest` is what llama.cpp and Ollama take by themselves).
    `pinned`: something beside the name was given, so that only the hub knows the answer.
    """

    repo: str
    revision: str | None = None
    file: str | None = None
    folder: str | None = None
    tag: str | None = None

    @property
    def pinned(self) -> bool:
        """Whether a file, a folder or a tag is named."""
        return bool(self.file or self.folder or self.tag)


def parse_hub_name(text: str) -> HubName | None:
    """The hub name that `text` is; None when it is written like none.

    Understood: `org/name`, `org/name@revision`, `org/name/file.gguf`, `org/name:Q4_K_M`, an
    address of the hub's pages (`https://huggingface.co/org/name/tree/revision`), `hf.co/...`,
    `hf:` and `hf://` in front. Raises ModelError for addresses of anything else.
    """
    if len(text) > _LONGEST:
        return None
    plain = text.strip()
    scheme, mark, rest = plain.partition("://")
    if mark and scheme in ("http", "https"):
        return _address(plain)
    plain = (rest if mark and scheme == "hf" else plain).removeprefix("hf:").removeprefix("models/")
    if plain.partition("/")[0] in _HOSTS:
        return _address(f"https://{plain}")
    match = _NAME.match(plain)
    if match is None or ".." in plain or plain.startswith("."):
        return None
    file = match["file"]
    if file is not None and not file.endswith((".gguf", ".json", ".safetensors")):
        return None
    return HubName(
        repo=match["repo"], revision=match["revision"], file=_gguf(file), tag=match["tag"]
    )


def _gguf(file: str | None) -> str | None:
    """The file where it is a model by itself; configs and weights mean their repository."""
    return file if file and file.endswith(".gguf") else None


def _address(text: str) -> HubName:
    """The repository that a page's address shows."""
    try:
        parts = urlsplit(text)
        own = urlsplit(os.environ.get("HF_ENDPOINT") or "").hostname
    except ValueError:
        raise ModelError(f"{text[:120]} is no address", hint="give org/name") from None
    if parts.hostname not in (*_HOSTS, own):
        raise ModelError(
            f"{str(parts.hostname)[:80]} is no model hub that is known here",
            hint="give a hub name (org/name) or a downloaded file",
        )
    steps = [unquote(step) for step in parts.path.strip("/").split("/") if step]
    if steps[:1] == ["models"]:
        steps = steps[1:]
    if not steps or steps[0] in ("datasets", "spaces", "collections", "docs"):
        raise ModelError(f"{text[:120]} is no page of a model", hint="give org/name")
    name, rest = "/".join(steps[:2]), steps[2:]
    repo, _, tag = name.partition(":")
    if len(steps) < 2 or not re.fullmatch(f"{_PART}/{_PART}", repo) or ".." in text:
        raise ModelError(f"{text[:120]} is no page of a model", hint="give org/name")
    if not rest or rest[0] not in _VERBS:
        return HubName(repo=repo, tag=tag or None)
    at = 4 if rest[1:3] == ["refs", "pr"] else 2
    revision, inside = "/".join(rest[1:at]), "/".join(rest[at:])
    return HubName(
        repo=repo,
        revision=revision if revision and revision != "main" else None,
        file=_gguf(inside),
        folder=inside if rest[0] == "tree" and inside else None,
        tag=tag or None,
    )
