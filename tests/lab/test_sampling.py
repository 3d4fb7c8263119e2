"""Sampling: the distribution it says, cut where it says; text that comes out of tokens whole."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.lab.sampling import Sampler, Sampling  # noqa: E402
from kvproof.lab.text_stream import TextStream  # noqa: E402

pytestmark = pytest.mark.lab

LOGITS = torch.tensor([0.5, 0.15, 0.05, 0.3]).log()


def shares(sampling, draws=4000):
    sampler = Sampler(sampling)
    counts = torch.tensor([sampler(LOGITS) for _ in range(draws)]).bincount(minlength=4)
    return (counts / draws).tolist()


def test_draws_follow_the_probabilities():
    # five standard deviations of a share of one half over 4,000 draws: 0.04
    assert shares(Sampling(temperature=1, seed=1)) == pytest.approx(
        [0.5, 0.15, 0.05, 0.3], abs=0.04
    )
    flat = [p**0.5 for p in (0.5, 0.15, 0.05, 0.3)]
    want = [p / sum(flat) for p in flat]
    assert shares(Sampling(temperature=2, seed=1)) == pytest.approx(want, abs=0.04)


def test_the_nucleus_is_the_fewest_that_reach_top_p():
    assert shares(Sampling(temperature=1, top_p=0.75, seed=2)) == pytest.approx(
        [0.625, 0, 0, 0.375], abs=0.04
    )
    assert shares(Sampling(temperature=1, top_p=0.5, seed=2), 50) == [1, 0, 0, 0]


def test_a_seed_repeats_and_zero_is_greedy():
    draws = [[Sampler(Sampling(temperature=1, seed=7))(LOGITS) for _ in range(9)] for _ in "ab"]
    assert draws[0] == draws[1]
    assert shares(Sampling(), 3) == [1, 0, 0, 0]


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"temperature": float("nan")},
                                   {"top_p": 0}, {"top_p": 1.1}])  # fmt: skip
def test_wrong_numbers_are_refused(wrong):
    with pytest.raises(UsageError):
        Sampling(**wrong)


def decode(tokens):
    return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("stops", [[], ["STOP"], ["\n\n", "OP!"], ["é"]])
def test_pieces_add_up_to_the_text_before_a_stop(stops):
    text = "naïve 日本 S STO ST\n STOP! more\n\nend"
    stream, out = TextStream(decode, stops), ""
    for token in text.encode():
        out += stream.push(token)
        if stream.stopped:
            break
    out += stream.finish()
    ends = [text.find(stop) for stop in stops if stop in text]
    assert out == (text[: min(ends)] if ends else text)
    assert stream.stopped == bool(ends)
