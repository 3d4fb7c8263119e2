"""Safetensors headers: exact bytes by type, local, ranged and sharded; hostile files refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import CONFIG, safetensors

import kvproof
from kvproof.errors import ModelError
from kvproof.model.byte_source import RangedBytes
from kvproof.model.safetensors import INDEX, SINGLE, read_files, read_folder, read_header


def ranged(raw: bytes) -> RangedBytes:
    return RangedBytes("x.safetensors", lambda start, size: raw[start : start + size], len(raw))


def test_bytes_by_type_are_exact() -> None:
    raw = safetensors(
        {"a": ("BF16", [3, 5]), "b": ("F8_E4M3", [7]), "c": ("F4", [4, 6]), "d": ("F32", [])}
    )
    found = {t.name: (t.bytes, t.elements) for t in read_header(ranged(raw))}
    assert found == {"a": (30, 15), "b": (7, 7), "c": (12, 24), "d": (4, 1)}
    checkpoint = read_files(("x",), lambda _: ranged(raw))
    assert checkpoint.bytes_by_type == {"BF16": 30, "F8_E4M3": 7, "F4": 12, "F32": 4}
    assert checkpoint.bytes == 53


def test_only_the_header_is_fetched() -> None:
    raw = safetensors({"a": ("BF16", [4000, 4000])})
    source = ranged(raw)
    read_header(source)
    assert source.fetched <= 2**20 < len(raw)


def test_a_sharded_folder_counts_every_tensor_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "one.safetensors").write_bytes(
        safetensors({"a": ("BF16", [8]), "b": ("BF16", [8])})
    )
    (tmp_path / "two.safetensors").write_bytes(safetensors({"b": ("BF16", [8]), "c": ("F32", [8])}))
    (tmp_path / "old.safetensors").write_bytes(safetensors({"z": ("F32", [99])}))
    names = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    model = kvproof.load_model(tmp_path)
    assert model.stored_weight_bytes == 16 + 16 + 32
    assert model.dtype == "bf16"
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(ModelError, match=r"two\.safetensors"):
        kvproof.load_model(tmp_path)


def test_one_file_or_loose_shards_serve_too(tmp_path: Path) -> None:
    assert read_folder(tmp_path) is None
    (tmp_path / "part-1.safetensors").write_bytes(safetensors({"a": ("F32", [2])}))
    (tmp_path / "part-2.safetensors").write_bytes(safetensors({"b": ("F32", [3])}))
    found = read_folder(tmp_path)
    assert found is not None
    assert found.bytes == 20
    (tmp_path / SINGLE).write_bytes(safetensors({"c": ("F32", [1])}))
    assert read_folder(tmp_path) != found


def wrap(header: object) -> bytes:
    raw = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(raw)) + raw


HOSTILE = {
    "empty": b"",
    "length": struct.pack("<Q", 2**62) + b"{}",
    "cut": struct.pack("<Q", 100) + b"{}",
    "no JSON": wrap(b"{..."),
    "deep": wrap(b"[" * 100_000),
    "a list": wrap([1, 2]),
    "no object": wrap({"a": 3}),
    "type": wrap({"a": {"dtype": "Q4", "shape": [1], "data_offsets": [0, 1]}}),
    "negative": wrap({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
    "huge": wrap({"a": {"dtype": "F32", "shape": [2**61, 2**61], "data_offsets": [0, 4]}}),
    "true": wrap({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
    "offsets": wrap({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
    "three offsets": wrap({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}),
    "bytes": wrap({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_give_one_line(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_header(ranged(HOSTILE[name]))
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_are_a_header_or_an_error(noise: bytes, cut: int) -> None:
    raw = bytearray(safetensors({"a": ("BF16", [3, 5])}, data=False))
    raw[cut : cut + len(noise) // 8] = noise[: len(noise) // 8]
    for data in (noise, bytes(raw), bytes(raw[:cut])):
        try:
            read_header(ranged(data))
        except ModelError:
            continue


def test_an_index_may_not_point_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name in ("../x.safetensors", "/etc/passwd", "a\\b"):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelError, match="names the file"):
            kvproof.load_model(tmp_path)


def file_of(rows: dict[str, tuple[int, int]], behind: int) -> bytes:
    """A file whose U8 tensors lie at the given places, with `behind` bytes after the header."""
    header = {
        name: {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        for name, (start, stop) in rows.items()
    }
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + b"\0" * behind


@pytest.mark.parametrize(
    ("rows", "behind", "what"),
    [
        ({"a": (0, 10), "b": (10, 30)}, 29, "cut short: its tensors need 30 bytes, 29 are there"),
        ({"a": (0, 10), "b": (10, 30)}, 0, "cut short"),
        ({"a": (0, 10), "b": (10, 30)}, 31, "1 bytes follow its last tensor"),
        ({"a": (0, 10), "b": (9, 30)}, 30, "overlap at byte 9"),
        ({"a": (0, 10), "b": (0, 10)}, 10, "overlap at byte 0"),
        ({"a": (0, 10), "b": (12, 30)}, 30, "leave a hole at byte 10"),
        ({"a": (5, 10)}, 10, "leave a hole at byte 0"),
    ],
)
def test_damage_is_one_clear_line(
    rows: dict[str, tuple[int, int]], behind: int, what: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / SINGLE).write_bytes(file_of(rows, behind))
    with pytest.raises(ModelError, match=what) as caught:
        kvproof.load_model(tmp_path)
    assert SINGLE in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [SINGLE, "config.json", "model.gguf"])
def test_a_pointer_in_place_of_the_file(name: str, tmp_path: Path) -> None:
    if name != "model.gguf":
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
    )
    with pytest.raises(ModelError, match="Git LFS pointer"):
        kvproof.load_model(tmp_path)


def test_tensors_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "one.safetensors").write_bytes(safetensors({"a": ("BF16", [8])}))
    names = {"a": "one.safetensors", "b": "one.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(ModelError, match="names 1 tensors that its files do not hold, 'b'"):
        kvproof.load_model(tmp_path)
