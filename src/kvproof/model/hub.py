"""Models on the Hugging Face hub, read by ranges: configs and headers, never the weights.

Goes through huggingface_hub (an optional extra), so its token, endpoint, offline and cache
rules hold: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME. The commit read is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvproof.errors import HubError, ModelError
from kvproof.model.byte_source import RangedBytes
from kvproof.model.formats import is_first_part, noted, quantized_by, read_any_config, read_json
from kvproof.model.names import HubName, parse_hub_name
from kvproof.model.params_json import from_params
from kvproof.model.read import read_config
from kvproof.model.safetensors import INDEX, SINGLE, check_index, index_files, read_files
from kvproof.model.stored import with_checkpoint
from kvproof.model.types import Model, Source

# Seconds that one answer of the hub may take.
_PATIENCE = 15.0


class Hub(Protocol):
    """What is asked of the hub; tests put a stand-in here."""

    def revision(self, repo_id: str, wanted: str | None = None) -> tuple[str | None, list[str]]:
        """The commit of `wanted` (the default branch without one) and its file names."""

    def download(self, repo_id: str, name: str, revision: str | None) -> Path:
        """A small file, from the cache or fetched."""

    def fetch(
        self, repo_id: str, name: str, revision: str | None, start: int, length: int
    ) -> bytes:
        """A range of a large file."""


def read_hub(name: str | HubName, *, offline: bool = False, hub: Hub | None = None) -> Model:
    """The model of a hub repository. Raises HubError with what to do when it can't be had.

    `offline` reads the local cache only. Everything is read at the one commit that
    `source.revision` names.
    """
    asked = parse_hub_name(name) if isinstance(name, str) else name
    if asked is None:
        raise HubError(f"{str(name)[:80]!r} is no hub name", hint="write org/name")
    client = hub or HuggingFace(offline=offline)
    revision, files = client.revision(asked.repo, asked.revision)
    source = Source(origin="hub", location=asked.repo, revision=revision)
    if asked.pinned or "config.json" not in files:
        return _without_config(client, asked, files, source)
    config = read_json(client.download(asked.repo, "config.json", revision))
    config = _with_sidecar(client, asked.repo, config, files, revision)
    model = read_any_config(config, name=asked.repo, source=source)
    return _with_weights(client, model, asked.repo, files, revision)


def _without_config(client: Hub, asked: HubName, files: list[str], source: Source) -> Model:
    """A repository of GGUF files, or one with a params.json."""
    repo = asked.repo
    ggufs = [name for name in files if name.endswith(".gguf")]
    if not asked.pinned and not ggufs and "params.json" in files:
        params = read_json(client.download(repo, "params.json", source.revision))
        config, notes = from_params(params) or (params, ())
        return noted(read_config(config, name=repo, source=source), notes)
    if asked.file is not None and asked.file not in files:
        raise HubError(f"{repo} has no file {asked.file[:80]!r}", hint="see its files on the hub")
    return _read_gguf(client, repo, asked.file or _one_gguf(asked, ggufs), source)


def _one_gguf(asked: HubName, names: list[str]) -> str:
    """The one model that is meant; where there are several, the user says which."""
    inside = f"{asked.folder}/" if asked.folder else ""
    models = [name for name in names if name.startswith(inside) and is_first_part(name)]
    if not models:
        raise HubError(
            f"{asked.repo} has no config.json and no GGUF file", hint="name another repository"
        )
    if asked.tag is not None:
        models = _tagged(asked.tag, models)
    if len(models) == 1:
        return models[0]
    some = ", ".join(models[:5]) or ", ".join(n for n in names[:5])
    what = f"{len(models)} GGUF models" if models else f"no GGUF model {asked.tag}"
    first = (models or names)[0]
    raise HubError(f"{asked.repo} holds {what}: {some}", hint=f"name one: {asked.repo}/{first}")


def _tagged(tag: str, models: list[str]) -> list[str]:
    """The first file of a quantization, by llama.cpp's rule (common/download.cpp).

    A file's name holds the tag before a dot or a dash. Without a tag: Q4_K_M, Q8_0, any.
    """
    tags = ("Q4_K_M", "Q8_0", "") if tag.lower() == "latest" else (tag,)
    for wanted in tags:
        pattern = re.compile(re.escape(wanted) + "[.-]", re.IGNORECASE)
        found = [name for name in models if pattern.search(name)]
        if found:
            return found[:1]
    return []


def _read_gguf(client: Hub, repo_id: str, name: str, source: Source) -> Model:
    from kvproof.model.gguf import read_split
    from kvproof.model.gguf_config import read_parsed

    folder, _, file = name.rpartition("/")
    prefix = f"{folder}/" if folder else ""
    header = read_split(file, lambda part: _ranged(client, repo_id, prefix + part, source.revision))
    model = read_parsed(header, source=source)
    return msgspec.structs.replace(model, name=f"{repo_id}/{name}")


def _ranged(client: Hub, repo_id: str, name: str, revision: str | None) -> RangedBytes:
    return RangedBytes(name, lambda start, size: client.fetch(repo_id, name, revision, start, size))


def _with_sidecar(
    client: Hub, repo_id: str, config: dict[str, Any], files: list[str], revision: str | None
) -> dict[str, Any]:
    """The config with ModelOpt's own file beside it, where there is one."""
    name = "hf_quant_config.json"
    if name not in files or "quantization_config" in config:
        return config
    return quantized_by(config, read_json(client.download(repo_id, name, revision)))


def _with_weights(
    client: Hub, model: Model, repo_id: str, files: list[str], revision: str | None
) -> Model:
    """Exact bytes from the safetensors headers; a hub that gives no ranges leaves a note."""
    try:
        index = b""
        if INDEX in files:
            index = client.download(repo_id, INDEX, revision).read_bytes()
            names = index_files(index, INDEX)
        elif SINGLE in files:
            names = (SINGLE,)
        else:
            return model
        found = read_files(names, lambda name: _ranged(client, repo_id, name, revision))
        if index:
            check_index(found, index, INDEX)
    except (HubError, ModelError) as error:
        note = f"weight bytes are computed, not read: {error.message}"
        return msgspec.structs.replace(model, notes=(*model.notes, note))
    return with_checkpoint(model, found)


def _at_most(parts: Iterable[bytes], length: int) -> bytes:
    """The first `length` bytes of a stream; what comes after them is never read."""
    out = bytearray()
    for part in parts:
        out += part
        if len(out) >= length:
            break
    return bytes(out[:length])


class HuggingFace:
    """The hub by way of huggingface_hub."""

    def __init__(self, *, offline: bool = False) -> None:
        try:
            import huggingface_hub
            from huggingface_hub import constants, utils
        except ImportError:
            raise HubError(
                "reading from the hub needs huggingface_hub", hint="pip install 'kvproof[hub]'"
            ) from None
        self._lib, self._utils = huggingface_hub, utils
        self.offline = offline or bool(constants.HF_HUB_OFFLINE)

    def revision(self, repo_id: str, wanted: str | None = None) -> tuple[str | None, list[str]]:
        """Commit and files; offline, those of the snapshot in the cache."""
        if self.offline:
            return self._cached(repo_id, wanted)
        ask = self._lib.HfApi().model_info
        info = self._ask(repo_id, lambda: ask(repo_id, revision=wanted, timeout=_PATIENCE))
        return info.sha, [sibling.rfilename for sibling in info.siblings or ()]

    def _cached(self, repo_id: str, wanted: str | None) -> tuple[str, list[str]]:
        """The snapshot of `wanted`: by its branch, as a commit, else the one read last."""
        from huggingface_hub import constants

        folder = Path(constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
        snapshots = folder / "snapshots"
        reference = folder / "refs" / (wanted or "main")
        names = [wanted] if wanted else []
        if reference.is_file():
            names.insert(0, reference.read_text(encoding="utf-8").strip()[:100])
        if wanted is None and snapshots.is_dir():
            dated = sorted(snapshots.iterdir(), key=lambda path: path.stat().st_mtime)
            names += [path.name for path in reversed(dated)]
        for name in names:
            found = snapshots / name
            files = [p.relative_to(found).as_posix() for p in found.rglob("*") if p.is_file()]
            if files:
                return name, sorted(files)
        asked = f"{repo_id}@{wanted}" if wanted else repo_id
        raise HubError(
            f"{asked[:100]} is not in the local cache and the hub is not asked",
            hint="go online once, or unset HF_HUB_OFFLINE",
        )

    def download(self, repo_id: str, name: str, revision: str | None) -> Path:
        """A small file through the hub's cache, at the commit that everything is read at."""
        return Path(
            self._ask(
                repo_id,
                lambda: self._lib.hf_hub_download(
                    repo_id, name, revision=revision, local_files_only=self.offline
                ),
            )
        )

    def fetch(
        self, repo_id: str, name: str, revision: str | None, start: int, length: int
    ) -> bytes:
        """A range by an HTTP Range request; a cached file is read in place."""
        cached = self._lib.try_to_load_from_cache(repo_id, name, revision=revision)
        if isinstance(cached, str):
            with Path(cached).open("rb") as file:
                file.seek(start)
                return file.read(length)
        if self.offline:
            raise HubError(f"{repo_id}/{name} is not in the cache", hint="go online once")
        return bytes(
            self._ask(repo_id, lambda: self._range(repo_id, name, revision, start, length))
        )

    def _range(
        self, repo_id: str, name: str, revision: str | None, start: int, length: int
    ) -> bytes:
        """One ranged request; a hub that answers with the whole file is cut off at the range."""
        url = self._lib.hf_hub_url(repo_id, name, revision=revision)
        headers = {
            **self._utils.build_hf_headers(),
            "Range": f"bytes={start}-{start + length - 1}",
        }
        session = self._utils.get_session()
        options: dict[str, Any] = {"headers": headers, "follow_redirects": True}
        with session.stream("GET", url, timeout=_PATIENCE, **options) as response:
            self._utils.hf_raise_for_status(response)
            if response.status_code != 206:
                raise HubError(
                    f"the hub gives no ranges of {name}", hint="download the file and name it"
                )
            return _at_most(response.iter_bytes(), length)

    def _ask(self, repo_id: str, call: Callable[[], Any]) -> Any:
        """Run `call`, turning the library's errors into one line that says what to do."""
        from kvproof.model.hub_errors import explained

        try:
            return call()
        except HubError:
            raise
        except Exception as error:  # the library raises its HTTP client's own errors too
            raise explained(error, repo_id) from None
