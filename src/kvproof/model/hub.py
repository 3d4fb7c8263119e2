"""Models on the Hugging Face hub, read by ranges: configs and headers, never the weights.

Goes through huggingface_hub (an optional extra), so its token, endpoint, offline and cache
rules hold: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME. The commit read is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvproof.errors import HubError, ModelError
from kvproof.model.byte_source import RangedBytes
from kvproof.model.formats import read_any_config, read_json
from kvproof.model.params_json import from_params
from kvproof.model.read import read_config
from kvproof.model.safetensors import INDEX, SINGLE, index_files, read_files
from kvproof.model.stored import with_checkpoint
from kvproof.model.types import Model, Source

# Seconds that one answer of the hub may take.
_PATIENCE = 15.0


class Hub(Protocol):
    """What is asked of the hub; tests put a stand-in here."""

    def revision(self, repo_id: str) -> tuple[str | None, list[str]]:
        """The commit of the default branch and its file names."""

    def download(self, repo_id: str, name: str, revision: str | None) -> Path:
        """A small file, from the cache or fetched."""

    def fetch(
        self, repo_id: str, name: str, revision: str | None, start: int, length: int
    ) -> bytes:
        """A range of a large file."""


def read_hub(repo_id: str, *, offline: bool = False, hub: Hub | None = None) -> Model:
    """The model of a hub repository. Raises HubError with what to do when it can't be had.

    `offline` reads the local cache only. `org/name/file.gguf` names one file of a repository.
    """
    client = hub or HuggingFace(offline=offline)
    repo_id, wanted = split_name(repo_id)
    revision, files = client.revision(repo_id)
    source = Source(origin="hub", location=repo_id, revision=revision)
    if wanted is not None or "config.json" not in files:
        return _without_config(client, repo_id, wanted, files, source)
    config = read_json(client.download(repo_id, "config.json", revision))
    config = _with_sidecar(client, repo_id, config, files, revision)
    model = read_any_config(config, name=repo_id, source=source)
    return _with_weights(client, model, repo_id, files, revision)


def split_name(text: str) -> tuple[str, str | None]:
    """Repository and, where a third part follows, the file in it."""
    parts = text.split("/", 2)
    return ("/".join(parts[:2]), parts[2]) if len(parts) == 3 else (text, None)


def _without_config(
    client: Hub, repo_id: str, wanted: str | None, files: list[str], source: Source
) -> Model:
    """A repository of GGUF files, or one with a params.json."""
    ggufs = [name for name in files if name.endswith(".gguf")]
    if wanted is None and not ggufs and "params.json" in files:
        params = read_json(client.download(repo_id, "params.json", source.revision))
        return read_config(from_params(params) or params, name=repo_id, source=source)
    name = wanted or _one_gguf(repo_id, ggufs)
    if wanted is not None and wanted not in files:
        raise HubError(f"{repo_id} has no file {wanted[:80]!r}", hint="see its files on the hub")
    return _read_gguf(client, repo_id, name, source)


def _one_gguf(repo_id: str, names: list[str]) -> str:
    """The one model of a repository; where there are several, the user says which."""
    models = [
        name
        for name in names
        if "mmproj" not in name and ("-of-" not in name or "-00001-of-" in name)
    ]
    if len(models) == 1:
        return models[0]
    if not models:
        raise HubError(
            f"{repo_id} has no config.json and no GGUF file", hint="name another repository"
        )
    some = ", ".join(models[:5])
    raise HubError(
        f"{repo_id} holds {len(models)} GGUF models: {some}",
        hint=f"name one: {repo_id}/{models[0]}",
    )


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
    section = read_json(client.download(repo_id, name, revision)).get("quantization")
    if not isinstance(section, dict):
        return config
    return {**config, "quantization_config": {"quant_method": "modelopt", **section}}


def _with_weights(
    client: Hub, model: Model, repo_id: str, files: list[str], revision: str | None
) -> Model:
    """Exact bytes from the safetensors headers; a hub that gives no ranges leaves a note."""
    try:
        if INDEX in files:
            path = client.download(repo_id, INDEX, revision)
            names = index_files(path.read_bytes(), INDEX)
        elif SINGLE in files:
            names = (SINGLE,)
        else:
            return model
        found = read_files(names, lambda name: _ranged(client, repo_id, name, revision))
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

    def revision(self, repo_id: str) -> tuple[str | None, list[str]]:
        """Commit and files; offline, those of the snapshot in the cache."""
        if self.offline:
            return self._cached(repo_id)
        info = self._ask(repo_id, lambda: self._lib.HfApi().model_info(repo_id, timeout=_PATIENCE))
        return info.sha, [sibling.rfilename for sibling in info.siblings or ()]

    def _cached(self, repo_id: str) -> tuple[str | None, list[str]]:
        path = self._ask(
            repo_id,
            lambda: self._lib.hf_hub_download(repo_id, "config.json", local_files_only=True),
        )
        folder = Path(path).parent
        return folder.name, [file.name for file in folder.iterdir()]

    def download(self, repo_id: str, name: str, revision: str | None) -> Path:
        """A small file through the hub's cache.

        The config is asked for by the branch's name, so that the cache knows which commit the
        branch stood at and an offline start finds it.
        """
        if name == "config.json" and not self.offline:
            revision = None
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
