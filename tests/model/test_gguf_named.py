"""Weights of GGUF files that are not here, by the type in their name, against published files."""

from __future__ import annotations

import pytest
from msgspec import structs

import kvproof
from kvproof.errors import HubError, HubUnreachedError
from kvproof.model import hub
from kvproof.model.gguf_mixes import MIXES, NEAR, file_type
from kvproof.model.gguf_named import named_type, typed
from kvproof.model.hub_errors import explained
from kvproof.model.load import named_weights
from kvproof.model.types import Source
from kvproof.model.weights import weight_bytes

LLAMA, MOE, OSS = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b"
# Sizes of bartowski's Meta-Llama-3.1-8B-Instruct files; the metadata in front of their tensors,
# the tokenizer mostly, is the same in all.
METADATA = 7_836_192
FILES = {
    "Q8_0": 8_540_770_784, "Q6_K": 6_596_006_432, "Q5_K_M": 5_732_987_424,
    "Q5_K_S": 5_599_293_984, "Q4_K_M": 4_920_734_240, "Q4_K_S": 4_692_669_984,
    "Q3_K_L": 4_321_956_896, "Q3_K_M": 4_018_918_432, "Q3_K_S": 3_664_499_744,
    "Q2_K": 3_179_131_936, "IQ4_XS": 4_447_662_624, "IQ3_M": 3_784_823_840,
    "IQ2_M": 2_948_281_376,
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_a_dense_model_takes_what_the_published_file_takes(kind: str) -> None:
    model = typed(kvproof.load_model(LLAMA, offline=True), kind)
    assert weight_bytes(model) == pytest.approx(FILES[kind] - METADATA, abs=2_000)


@pytest.mark.parametrize(
    ("name", "kind", "published"),
    [
        (MOE, "Q4_K_M", 18_556_684_768),
        (MOE, "Q8_0", 32_483_932_640),
        ("Qwen/Qwen3-8B", "Q4_K_M", 5_027_783_488),
        ("microsoft/phi-4", "Q4_K_M", 9_053_114_816),
        (OSS, "MXFP4", 12_109_566_560),
        ("deepseek-ai/DeepSeek-V3", "Q4_K_M", 404_430_188_000),
    ],
)
def test_other_designs_take_what_published_files_take(name: str, kind: str, published: int) -> None:
    model = typed(kvproof.load_model(name, offline=True), kind)
    assert weight_bytes(model) == pytest.approx(published, rel=0.002)


def test_every_type_is_known_by_its_name_and_smaller_types_take_less() -> None:
    model = kvproof.load_model(LLAMA, offline=True)
    assert all(file_type(f"x-{kind}.gguf") == kind for kind in (*MIXES, *NEAR))
    sizes = [weight_bytes(typed(model, kind)) for kind in ("IQ1_S", "Q2_K", "Q4_0", "BF16", "F32")]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Qwen3-30B-A3B-Q4_K_M.gguf", "Q4_K_M"),
        ("/models/llama.q5_0.gguf", "Q5_0"),
        ("x-UD-Q2_K_XL-00001-of-00002.gguf", "Q2_K_XL"),
        ("org/x-GGUF:IQ4_XS", "IQ4_XS"),
        ("org/x-GGUF:latest", "Q4_K_M"),
        ("org/x-GGUF", "Q4_K_M"),
        ("ollama:llama3.1:8b", "Q4_K_M"),
        ("ollama:llama3.1:8b-instruct-q8_0", "Q8_0"),
        ("ollama:llama3.1:8b-instruct-fp16", "FP16"),
        ("model.gguf", None),
        ("org/x-bf16", None),
        ("https://host/x", None),
    ],
)
def test_the_type_that_a_name_means(name: str, kind: str | None) -> None:
    assert named_type(kvproof.load_model(LLAMA, offline=True), name) == kind


def test_experts_that_are_published_in_mxfp4_stay_so() -> None:
    model = kvproof.load_model(OSS, offline=True)
    assert named_weights(model, "ollama:gpt-oss:20b") is model
    assert named_weights(model, "ggml-org/gpt-oss-20b-GGUF:latest").quantization != (
        model.quantization
    )
    small = typed(model, "Q4_K_M")
    assert weight_bytes(small) == pytest.approx(11_624_759_488, rel=0.002)  # unsloth's file


def test_a_name_beside_another_says_the_type_once() -> None:
    model = named_weights(kvproof.load_model(LLAMA, offline=True), "a-Q4_0.gguf")
    again = named_weights(model, "b-Q8_0.gguf")
    assert [n for n in again.notes if "reckoned" in n] == [
        n for n in again.notes if "b-Q8_0.gguf" in n
    ]
    assert weight_bytes(again) > weight_bytes(model)


def test_a_tag_is_read_without_the_hub_and_not_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that can't be asked leaves the catalogue; one that has no such file does not."""

    def unreached(*_: object, **__: object) -> None:
        raise explained(TimeoutError(), "unsloth/Qwen3-30B-A3B-GGUF")

    monkeypatch.setattr(hub, "read_hub", unreached)
    model = kvproof.load_model("unsloth/Qwen3-30B-A3B-GGUF:Q8_0")
    assert weight_bytes(model) == pytest.approx(32_483_932_640, rel=0.002)
    assert any("not the hub's file" in note for note in model.notes)

    def refused(*_: object, **__: object) -> None:
        raise HubError("no GGUF model Q8_0")

    monkeypatch.setattr(hub, "read_hub", refused)
    with pytest.raises(HubError) as error:
        kvproof.load_model("unsloth/Qwen3-30B-A3B-GGUF:Q8_0")
    assert not isinstance(error.value, HubUnreachedError)


def test_a_file_that_is_here_says_its_types_itself() -> None:
    model = kvproof.load_model(LLAMA, offline=True)
    read = structs.replace(model, source=Source(origin="gguf", location="x.gguf"))
    assert named_weights(read, "x-Q8_0.gguf") is read
