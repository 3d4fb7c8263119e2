"""Models on disk: whatever file or folder a user has, read as what it is.

A config.json, a transformers folder, a GGUF file, a safetensors file beside its config, an MLX
folder, `params.json` of Mistral or of the original Llama, a LoRA adapter, an Ollama model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvproof.errors import ModelError
from kvproof.model import mlx
from kvproof.model.params_json import from_params
from kvproof.model.read import read_config
from kvproof.model.safetensors import POINTER, read_folder
from kvproof.model.stored import with_checkpoint
from kvproof.model.types import Model, Source

_MAX_CONFIG_BYTES = 32 * 2**20
_GGUF_MAGIC = b"GGUF"


def read_path(path: Path) -> Model:
    """The model of a file or folder, whatever its format. Raises ModelError when it is none."""
    path = path.expanduser()
    try:
        if path.is_dir():
            return _read_folder(path)
        if path.is_file():
            return _read_file(path)
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}", hint="check the path") from None
    what = "is neither a file nor a folder" if path.exists() else "does not exist"
    raise ModelError(f"{path} {what}", hint="check the path")


def _read_file(path: Path) -> Model:
    if _starts_with(path, POINTER):
        raise _pointer(path.name)
    if path.suffix == ".gguf" or _starts_with(path, _GGUF_MAGIC):
        from kvproof.model.gguf_config import read_gguf

        return read_gguf(path)
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        if not (path.parent / "config.json").is_file():
            raise ModelError(
                f"{path.name} holds weights only: no config.json lies beside it",
                hint="give the model's folder or config.json",
            )
        return _read_folder(path.parent)
    if _is_manifest(path):
        from kvproof.model.ollama_store import read_manifest

        return read_manifest(path)
    from kvproof.model.modelfile import is_modelfile, read_modelfile

    if is_modelfile(path):
        from kvproof.model.load import load_ollama

        return read_modelfile(path, read_path, load_ollama)
    return _from_json(path, read_json(path))


def _from_json(path: Path, config: Mapping[str, Any]) -> Model:
    source = Source(origin="path", location=str(path))
    name = path.stem if path.stem != "config" else path.resolve().parent.name or path.stem
    if "general.architecture" in config:
        from kvproof.model.gguf_config import read_metadata

        return read_metadata(config, source=source)
    if path.name == "adapter_config.json":
        return _read_folder(path.parent)
    if "model_type" not in config:
        translated = from_params(config)
        if translated is not None:
            return noted(read_config(translated[0], name=name, source=source), translated[1])
    return read_any_config(config, name=name, source=source)


def _read_folder(folder: Path) -> Model:
    """A folder by its most telling file: adapter, config, params, GGUF."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        from kvproof.model.adapter import read_adapter

        return read_adapter(folder).base_model(read_path)
    for name in ("config.json", "params.json"):
        if (folder / name).is_file():
            return _with_weights(_from_config(folder, name), folder)
    files = sorted(folder.glob("*.gguf"))
    if files:
        return _read_file(first_model(files, folder))
    raise ModelError(
        f"{folder} holds no config.json, params.json or GGUF file",
        hint="name the model's own folder",
    )


def first_model(files: list[Path], folder: Path) -> Path:
    """The one model among GGUF files: projectors and later parts of a split left out."""
    models = [file for file in files if is_first_part(file.name)]
    if len(models) == 1:
        return models[0]
    names = ", ".join(file.name for file in models[:4])
    raise ModelError(f"{folder} holds {len(models)} GGUF models: {names}", hint="name one of them")


# GGUF files that lie beside models and are none: projectors, calibration, drafts.
_BESIDE = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")


def is_first_part(name: str) -> bool:
    """Whether a GGUF file of this name is a model, or the first part of a split one.

    Source: llama.cpp's common/download.cpp (gguf_filename_is_model).
    """
    file = name.rpartition("/")[2].lower()
    first = "-of-" not in file or "-00001-of-" in file
    return first and not any(sign in file for sign in _BESIDE)


def _from_config(folder: Path, name: str) -> Model:
    config = read_json(folder / name)
    notes: tuple[str, ...] = ()
    if name == "params.json":
        config, notes = from_params(config) or (config, ())
    sidecar = folder / "hf_quant_config.json"
    if sidecar.is_file() and "quantization_config" not in config:
        config = quantized_by(config, read_json(sidecar))
    source = Source(origin="path", location=str(folder / name))
    return noted(read_any_config(config, name=folder.resolve().name, source=source), notes)


def noted(model: Model, notes: tuple[str, ...]) -> Model:
    """The model with more notes."""
    return msgspec.structs.replace(model, notes=(*model.notes, *notes))


def quantized_by(config: dict[str, Any], sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """The config with ModelOpt's own file beside it (hf_quant_config.json) as its section.

    Raises ModelError for a file that says no quantization: it lies there to say one.
    """
    section = sidecar.get("quantization")
    if not isinstance(section, Mapping) or "quant_algo" not in section:
        raise ModelError(
            "hf_quant_config.json names no quantization (quant_algo)",
            hint="correct it, or remove it for unquantized weights",
        )
    return {**config, "quantization_config": {"quant_method": "modelopt", **section}}


def read_any_config(config: Mapping[str, Any], *, name: str, source: Source) -> Model:
    """The model of a parsed config.json, MLX's additions understood."""
    if not mlx.is_mlx(config):
        return read_config(config, name=name, source=source)
    model = read_config(mlx.without_quantization(config), name=name, source=source)
    return mlx.with_quantization(model, config["quantization"])


def _with_weights(model: Model, folder: Path) -> Model:
    checkpoint = read_folder(folder)
    return model if checkpoint is None else with_checkpoint(model, checkpoint)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of sane size."""
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ModelError(f"{path} is too large for a config", hint="give a model's config.json")
    value = parse_json(path.read_bytes(), str(path))
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no object", hint="give a model's config.json")
    return value


def parse_json(raw: bytes, place: str) -> Any:
    """The value of JSON text; Infinity and NaN as transformers itself writes them, a BOM or not."""
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    if raw.startswith(POINTER):
        raise _pointer(place)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        if b"Infinity" in raw or b"NaN" in raw:
            return _parse_loose(raw, place)
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ModelError(f"{place} is UTF-16", hint="save it as UTF-8") from None
        raise ModelError(
            f"{place} is no JSON: {str(error)[:80]}", hint="give a config.json"
        ) from None


def _pointer(place: str) -> ModelError:
    return ModelError(f"{place} is a Git LFS pointer, not the file", hint="git lfs pull")


def _parse_loose(raw: bytes, place: str) -> Any:
    import json

    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{place} is no JSON: {str(error)[:80]}", hint="give a config.json"
        ) from None


def _starts_with(path: Path, magic: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _is_manifest(path: Path) -> bool:
    """An Ollama manifest: JSON without a suffix that lists layers."""
    if path.suffix == ".json" or path.stat().st_size > 2**20:
        return False
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(value, dict) and isinstance(value.get("layers"), list)
