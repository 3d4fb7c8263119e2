"""Media tokens against what the processors and encoders of transformers 5.24 were measured at."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.errors import KvproofError, ModelError, UsageError
from kvproof.model import multimodal
from kvproof.model.multimodal import encoder_tokens, media_tokens, rows, total_tokens
from kvproof.model.types import Model, Source

TRUTH = Path(__file__).parents[1] / "ground_truth" / "multimodal.json"
RECORDS = json.loads(TRUTH.read_text(encoding="utf-8"))["records"]
MEDIA = ("images", "audio_seconds", "video_frames", "frame_size")
SAMPLE: dict[rows.Medium, dict[str, Any]] = {
    "image": {"images": [(640, 480)]},
    "audio": {"audio_seconds": 5.0},
    "video": {"video_frames": 8, "frame_size": (320, 240)},
}


def model(model_type: str, **config: Any) -> Model:
    return Model(
        name=model_type, model_type=model_type, architecture="Any", layers=1, hidden_size=1,
        attention_heads=1, vocab_size=1, context=None, dtype="bf16", slots=(), tensors=(),
        source=Source(origin="dict", location="test"), config={"model_type": model_type, **config},
    )  # fmt: skip


@pytest.mark.parametrize("kind", sorted({r["model_type"] for r in RECORDS}))
def test_measured(kind: str) -> None:
    for record in (r for r in RECORDS if r["model_type"] == kind):
        media = {k: v for k, v in record.items() if k in MEDIA}
        terms = media_tokens(model(kind, **record["config"]), **media)
        if "features" in record:
            assert terms[0].value == record["features"], record
        elif "slots" in record:
            assert encoder_tokens(terms) == record["slots"], record
        else:
            assert total_tokens(terms) == record["total"], record


# Published counts, beside the measured ones: the arithmetic of each config's own keys.
PUBLISHED: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("gemma3", {"mm_tokens_per_image": 256}, SAMPLE["image"], 256),
    ("gemma3n", {}, SAMPLE["audio"], 188),
    ("paligemma", {"vision_config": {"image_size": 448, "patch_size": 14}}, SAMPLE["image"], 1024),
    ("vipllava", {"vision_config": {"image_size": 336, "patch_size": 14}}, SAMPLE["image"], 576),
    ("git", {"vision_config": {"image_size": 224, "patch_size": 16}}, SAMPLE["image"], 197),
    ("blip-2", {"num_query_tokens": 32}, SAMPLE["image"], 32),
    ("kosmos-2", {"latent_query_num": 64}, SAMPLE["image"], 64),
    ("voxtral", {}, {"audio_seconds": 61}, 3 * 375),
    ("idefics2", {"perceiver_config": {"resampler_n_latents": 64}}, SAMPLE["image"], 320),
]


@pytest.mark.parametrize(("kind", "config", "media", "tokens"), PUBLISHED)
def test_published(kind: str, config: dict[str, Any], media: dict[str, Any], tokens: int) -> None:
    assert media_tokens(model(kind, **config), **media)[0].value == tokens


def test_every_row_answers_with_its_source_and_formula() -> None:
    for kind in rows.table():
        for medium in rows.known(kind):
            terms = media_tokens(model(kind), **SAMPLE[medium])
            assert terms, (kind, medium)
            assert all(t.unit == "token" and t.source and t.formula and t.exact for t in terms)
            assert all(isinstance(t.value, int) and t.value > 0 for t in terms)


def test_slots_are_no_text_positions() -> None:
    terms = media_tokens(model("whisper", max_source_positions=1500), audio_seconds=10)
    assert (total_tokens(terms), encoder_tokens(terms)) == (0, 1500)
    assert "encoder_tokens" in terms[0].name
    vision = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}
    terms = media_tokens(model("mllama", vision_config=vision), images=[(100, 100)])
    assert (total_tokens(terms), encoder_tokens(terms)) == (1, 6404)


def test_equal_images_are_one_term() -> None:
    terms = media_tokens(model("gemma3"), images=[(10, 10), (20, 10), (10, 10)])
    assert [(t.name, t.value) for t in terms] == [
        ("2 images 10x10", 512), ("2 images 10x10: marks", 8),
        ("image 20x10", 256), ("image 20x10: marks", 4),
    ]  # fmt: skip
    assert terms[0].formula == "2 x (256 at any size)"


def test_several_images_of_llava_onevision_are_not_tiled() -> None:
    one = media_tokens(model("llava_onevision"), images=[(2000, 2000)])
    two = media_tokens(model("llava_onevision"), images=[(2000, 2000)] * 2)
    assert total_tokens(two) == 2 * 730 < total_tokens(one)


def test_preprocessor_of_the_folder_wins() -> None:
    small = {"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 64}}
    terms = media_tokens(model("qwen2_vl"), images=[(2000, 2000)], preprocessor=small)
    assert total_tokens(terms) == 64


@pytest.mark.parametrize("nested", [False, True])
def test_preprocessor_beside_the_config(tmp_path: Path, nested: bool) -> None:
    small = {"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 64}, "max_patches": True}
    name = "processor_config.json" if nested else "preprocessor_config.json"
    text = json.dumps({"image_processor": small} if nested else small)
    (tmp_path / name).write_text(text, encoding="utf-8")
    source = Source(origin="path", location=str(tmp_path / "config.json"))
    local = msgspec.structs.replace(model("qwen2_vl"), source=source)
    terms = media_tokens(local, images=[(2000, 2000)])
    assert total_tokens(terms) == 64
    assert terms[0].source.startswith("the model's own preprocessor file")


def test_preprocessor_of_idefics3() -> None:
    own = {"size": {"longest_edge": 1024}, "max_image_size": {"longest_edge": 512}}
    config = {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4}
    terms = media_tokens(model("idefics3", **config), images=[(100, 100)], preprocessor=own)
    assert terms[0].value == 5 * 64


def test_a_strange_preprocessor_is_one_clear_line() -> None:
    for bad in ("big", [], -5, {"a": 1}):
        with pytest.raises(ModelError, match="max_pixels"):
            media_tokens(model("qwen2_vl"), images=[(64, 64)], preprocessor={"max_pixels": bad})


def test_thinker_config_is_read() -> None:
    config = {"thinker_config": {"audio_config": {"n_window": 100}}}
    terms = media_tokens(model("qwen3_omni_moe", **config), audio_seconds=1)
    assert "chunks of 200 frames" in terms[0].formula


def test_unknown_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="'llama'"):
        media_tokens(model("llama"), images=[(10, 10)])
    with pytest.raises(ModelError, match="audio in 'llava'"):
        media_tokens(model("llava"), audio_seconds=1)
    bare = msgspec.structs.replace(model("qwen2_vl"), config={})
    with pytest.raises(ModelError, match="no config"):
        media_tokens(bare, images=[(10, 10)])


@pytest.mark.parametrize(
    "media",
    [
        {"images": [(0, 10)]},
        {"images": [(10,)]},
        {"images": [(10.5, 10)]},
        {"images": [(2**20, 10)]},
        {"images": [(10000, 10)]},
        {"audio_seconds": -1},
        {"audio_seconds": math.nan},
        {"video_frames": -1},
        {"video_frames": 4},
        {"video_frames": 1, "frame_size": (64, 64)},
    ],
)
def test_impossible_media(media: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        media_tokens(model("qwen3_vl"), **media)


def test_nothing_asked_is_nothing() -> None:
    assert media_tokens(model("llama")) == ()


def test_a_bad_number_of_the_config_is_one_clear_line() -> None:
    for bad in (0, -3, "fourteen", True, {}):
        with pytest.raises(ModelError, match="patch"):
            media_tokens(model("qwen2_vl", vision_config={"patch_size": bad}), images=[(64, 64)])


@given(
    st.sampled_from(sorted(k for k in rows.table() if "image" in rows.known(k))),
    st.integers(1, 4000),
    st.integers(1, 4000),
)
def test_any_size_gives_a_count_or_one_clear_error(kind: str, width: int, height: int) -> None:
    try:
        terms = media_tokens(model(kind), images=[(width, height)])
    except KvproofError:
        return
    assert total_tokens(terms) + encoder_tokens(terms) > 0


ODD = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(-3, 3), st.integers(1, 2**45),
    st.floats(allow_nan=True), st.lists(st.integers(-2, 40), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip


def nested(path: str, value: Any) -> dict[str, Any]:
    out: Any = value
    for part in reversed(path.split(".")):
        out = {part: out}
    return out  # type: ignore[no-any-return]


@given(st.sampled_from(sorted(k for k in rows.table() if rows.known(k))), st.data())
def test_mutated_configs_answer_or_fail_in_one_line(kind: str, data: st.DataObject) -> None:
    medium = data.draw(st.sampled_from(rows.known(kind)))
    keys = rows.row({}, kind, kind, medium).get("keys", {})
    if not keys:
        return
    paths = keys[data.draw(st.sampled_from(sorted(keys)))]
    path = paths if isinstance(paths, str) else paths[0]
    config = nested(path, data.draw(ODD))
    try:
        terms = media_tokens(model(kind, **config), **SAMPLE[medium])
    except KvproofError:
        return
    assert all(term.value >= 0 for term in terms)


@given(
    st.sampled_from(sorted(k for k in rows.table() if "audio" in rows.known(k))),
    st.floats(0.1, 4000),
)
def test_longer_audio_is_never_shorter(kind: str, seconds: float) -> None:
    def tokens(length: float) -> int:
        terms = media_tokens(model(kind), audio_seconds=length)
        return total_tokens(terms) + encoder_tokens(terms)

    assert 0 <= tokens(seconds) <= tokens(seconds * 2)


def test_all_rules_are_used() -> None:
    used: dict[str, set[str]] = {"image": set(), "audio": set(), "video": set()}
    for kind in rows.table():
        for medium in rows.known(kind):
            used[medium].add(rows.row({}, kind, kind, medium)["rule"])
    assert used["image"] == set(multimodal._IMAGE)
    assert used["audio"] == set(multimodal._AUDIO)
    assert used["video"] - set(multimodal._IMAGE) == {*multimodal._VIDEO, "pooled_frame"}
