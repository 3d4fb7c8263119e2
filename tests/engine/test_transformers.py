"""The transformers engine against what transformers 5.24 really allocates."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof.engine import transformers as engine
from kvproof.engine.base import Cache, CacheRequest, Deployment
from kvproof.errors import UsageError
from kvproof.model.classes import base
from kvproof.model.read import read_config
from kvproof.model.types import Model, Source

ROOT = Path(__file__).resolve().parent.parent.parent
MEASURED = json.loads((ROOT / "tests/ground_truth/transformers.json").read_bytes())
SOURCE = Source(origin="dict", location="test")


def model_of(config: dict[str, Any]) -> Model:
    return read_config(config, name="model", source=SOURCE)


def ask(
    model: Model, tokens: int, *, version: str | None = None, dtype: str = "bf16", **fields: Any
) -> Cache:
    request = CacheRequest(lengths=(tokens,), dtype=dtype, **fields)
    return engine.cache(model, request, version)


# The given records -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(data_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        (data_dir / "transformers" / "oracle.json").read_bytes()
    )
    return found


def name_of(record: dict[str, Any]) -> str:
    return f"{record['model_type']} {record['variant'] or ''} {record['family']}"


def encoder_of(record: dict[str, Any], measured: dict[str, Any]) -> int | None:
    """Source positions that the record's cross attention holds."""
    if record["model_type"] == "mllama" and record["family"] == "itt":
        return int(measured["layers"][1]["tensors"]["keys"]["shape"][2])
    shapes = [
        layer["tensors"]["keys"]["shape"][2]
        for layer in measured["layers"]
        if layer.get("role") == "cross" and layer["tensors"]
    ]
    return max(shapes, default=None)


def logical(layer: dict[str, Any]) -> int:
    unique = layer.get("unique_bytes")
    return int(layer["bytes"] if unique is None else unique)


def total(measured: dict[str, Any]) -> int:
    return sum(map(logical, measured["layers"])) + (measured.get("extra") or {}).get("bytes", 0)


def prefills(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Cache]]:
    model = model_of(record["config"])
    for tokens, measured in record["lengths"].items():
        encoder = encoder_of(record, measured)
        yield measured, ask(model, int(tokens), encoder_tokens=encoder)


def test_bytes_after_a_prefill(records: list[dict[str, Any]]) -> None:
    wrong = [
        (name_of(record), answer.bytes, total(measured))
        for record in records
        for measured, answer in prefills(record)
        if answer.bytes != total(measured)
    ]
    assert not wrong


def test_allocated_bytes_after_a_prefill(records: list[dict[str, Any]]) -> None:
    wrong = [
        (name_of(record), answer.allocated_bytes, measured["storage_bytes"])
        for record in records
        for measured, answer in prefills(record)
        if answer.allocated_bytes != measured["storage_bytes"]
    ]
    assert not wrong


def test_bytes_of_each_layer(records: list[dict[str, Any]]) -> None:
    wrong = []
    for record in records:
        if record["model_type"] == "minimax":  # its states lie outside the cache's layers
            continue
        for measured, answer in prefills(record):
            own = [logical(x) for x in measured["layers"] if x.get("role") != "cross"]
            cross = [logical(x) for x in measured["layers"] if x.get("role") == "cross"]
            for layer, size in enumerate(cross):
                own[layer] += size
            if list(answer.layers) != own:
                wrong.append((name_of(record), answer.layers, own))
    assert not wrong


def test_after_one_decoded_token(records: list[dict[str, Any]]) -> None:
    wrong = []
    for record in records:
        measured = record["decode_34"]
        if not measured or "layers" not in measured:
            continue
        encoder = encoder_of(record, measured)
        answer = ask(model_of(record["config"]), 33, decode_steps=1, encoder_tokens=encoder)
        expected = (total(measured), measured["storage_bytes"])
        if (answer.bytes, answer.allocated_bytes) != expected:
            wrong.append((name_of(record), answer.bytes, answer.allocated_bytes, expected))
    assert not wrong


def test_static_caches(records: list[dict[str, Any]]) -> None:
    wrong = []
    for record in records:
        measured = record["static"]
        if not measured or "layers" not in measured:
            continue
        encoder = encoder_of(record, measured)
        answer = ask(model_of(record["config"]), 33, static_length=128, encoder_tokens=encoder)
        expected = (total(measured), measured["storage_bytes"])
        if record["model_type"] == "unlimited_ocr":
            # The record counts one buffer twice, whole and as the views into it.
            expected = (measured["storage_bytes"], measured["storage_bytes"])
        if (answer.bytes, answer.allocated_bytes) != expected:
            wrong.append((name_of(record), answer.bytes, answer.allocated_bytes, expected))
    assert not wrong


# Our own measurement of every architecture ------------------------------------------------------


def sizes(measured: dict[str, Any]) -> tuple[int, int]:
    rows = [*measured.get("self", []), *measured.get("cross", [])]
    held, behind = measured.get("whole", (0, 0))
    held += sum(row[0] * row[2] for row in rows) + measured.get("extra", 0)
    return held, behind + sum(row[1] * row[2] for row in rows)


def mismatches(record: dict[str, Any]) -> list[Any]:
    """Where kvproof differs from one measured record."""
    model = model_of(record["config"])
    cases: list[tuple[dict[str, Any], int, dict[str, Any]]] = [
        (measured, int(tokens), {}) for tokens, measured in record["lengths"].items()
    ]
    cases.append((record["static"], 33, {"static_length": 128}))
    cases.append((record["decode_34"], 33, {"decode_steps": 1}))
    out = []
    for measured, tokens, fields in cases:
        if "error" in measured:
            continue
        fields = {**fields, "encoder_tokens": measured.get("encoder", 0)}
        answer = ask(model, tokens, dtype=record["dtype"], **fields)
        if (answer.bytes, answer.allocated_bytes) != sizes(measured):
            got = (answer.bytes, answer.allocated_bytes)
            out.append((record["model_type"], tokens, fields, got, sizes(measured)))
    return out


@pytest.mark.parametrize(
    "record",
    MEASURED["records"],
    ids=[f"{r['model_type']}-{r['family']}-{r['variant']}" for r in MEASURED["records"]],
)
def test_measured_architectures(record: dict[str, Any]) -> None:
    assert mismatches(record) == []


# Rules ------------------------------------------------------------------------------------------


def test_a_sliding_layer_keeps_one_less_and_a_view_of_the_prompt() -> None:
    model = model_of({"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": 16})
    row = 2 * 8 * 128 * 2
    first, later = ask(model, 70), ask(model, 70, decode_steps=1)
    assert (first.bytes, first.allocated_bytes) == (15 * row, 70 * row)
    assert (later.bytes, later.allocated_bytes) == (15 * row, 16 * row)
    assert ask(model, 70, static_length=128).bytes == 16 * row


@pytest.mark.parametrize(("version", "rows"), [("4.55.4", 70), ("4.56.0", 15), (None, 15)])
def test_windows_were_kept_whole_before_4_56(version: str | None, rows: int) -> None:
    model = model_of({"model_type": "mistral", "num_hidden_layers": 1, "sliding_window": 16})
    row = 2 * 8 * 128 * 2
    assert ask(model, 70, version=version).bytes == rows * row
    static = ask(model, 70, version=version, static_length=128).bytes
    assert static == (128 if rows == 70 else 16) * row


@pytest.mark.parametrize(
    ("kind", "version", "row"),
    [
        ("deepseek_v3", "5.14", 128 * (192 + 128)),
        ("deepseek_v3", "4.57.1", 128 * (192 + 128)),
        ("deepseek_v3", "5.15.0", 576),
        ("deepseek_v3", None, 576),
        ("deepseek_v32", "5.17", 128 * (192 + 128) + 128),
        ("deepseek_v32", "5.18", 576 + 128),
    ],
)
def test_latent_attention_by_version(kind: str, version: str | None, row: int) -> None:
    model = model_of({"model_type": kind, "num_hidden_layers": 1})
    assert ask(model, 10, version=version).bytes == 10 * row * 2


def test_falcon_repeats_its_heads() -> None:
    fields = {"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 1}
    model = model_of(
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, **fields}
    )
    assert ask(model, 10).bytes == 10 * 2 * 8 * 64 * 2


def test_a_batch_is_padded_to_the_longest() -> None:
    model = model_of({"model_type": "llama", "num_hidden_layers": 2})
    request = CacheRequest(lengths=(5, 9, 7), dtype="bf16")
    assert engine.cache(model, request, None).bytes == 3 * ask(model, 9).bytes


def test_an_encoder_needs_its_length() -> None:
    model = model_of({"model_type": "t5"})
    with pytest.raises(UsageError, match="encoder_tokens"):
        ask(model, 10)
    assert ask(model_of({"model_type": "whisper"}), 10).bytes > 0


def test_classes_without_a_static_cache_say_so() -> None:
    with pytest.raises(UsageError, match="no static cache for rwkv"):
        ask(model_of({"model_type": "rwkv"}), 10, static_length=64)


def test_a_prompt_longer_than_the_static_cache_is_refused() -> None:
    with pytest.raises(UsageError, match="overflow"):
        ask(model_of({"model_type": "llama"}), 100, static_length=64)


def test_terms_add_up() -> None:
    answer = ask(model_of({"model_type": "qwen3_next"}), 100)
    assert sum(term.value for term in answer.terms) == answer.bytes


def test_flags() -> None:
    Deployment("transformers@5.24", dtype="bfloat16")
    with pytest.raises(UsageError, match="no flag"):
        Deployment("transformers", tensor_parallel_size=2)
    with pytest.raises(UsageError, match="want"):
        Deployment("transformers", batch="many")


# The installed transformers ----------------------------------------------------------------------


def installed_jobs() -> list[tuple[str, str, str]]:
    """Every generating architecture that could be measured when the records were made."""
    failed = {(row["model_type"], row["class"]) for row in MEASURED["failed"]}
    out: dict[tuple[str, str], tuple[str, str, str]] = {}
    for family, table in base().families.items():
        for kind, name in table.items():
            if (kind, name) not in failed:
                out.setdefault((kind, name), (family, kind, name))
    return list(out.values())


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "kind", "name"), installed_jobs())
def test_the_installed_transformers(family: str, kind: str, name: str) -> None:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(ROOT / "scripts"))
    from measure_transformers import measure  # type: ignore[import-not-found]

    assert mismatches(measure(family, kind, name)) == []


def test_a_batch_shares_the_position_ids_of_its_prompt() -> None:
    """Qwen4: one row expanded over batch and sections; the first decoded token copies it."""
    record = next(r for r in MEASURED["records"] if r["model_type"] == "qwen4_exp_text")
    model = model_of(record["config"])
    one, three = (
        [engine.cache(model, CacheRequest(lengths=(12,) * batch, dtype="bf16", decode_steps=steps),
                      None).allocated_bytes for steps in (0, 1)]
        for batch in (1, 3)
    )  # fmt: skip
    layers = sum(slot.kind == "indexer" for slot in model.slots)
    assert three[0] == 3 * one[0] - 2 * layers * 12 * 8
    assert three[1] == 3 * one[1]
