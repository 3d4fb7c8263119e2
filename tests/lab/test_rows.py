"""A few rows through the kernels: right, and the same bit by bit alone and in a batch."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.attention import View  # noqa: E402
from kvproof.lab.generation import pool_for  # noqa: E402
from kvproof.lab.models import runner as runners  # noqa: E402
from kvproof.lab.models.body import Gemma  # noqa: E402
from kvproof.lab.models.matvec import FEW, linear  # noqa: E402
from kvproof.lab.models.runner import Runner  # noqa: E402
from kvproof.lab.models.sources import random_body  # noqa: E402
from kvproof.lab.steps import PagedStep  # noqa: E402

pytestmark = pytest.mark.lab

COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 11, FEW]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 8), (33, 40), (100, 576), (5, 4104)])
def test_products_are_right_and_do_not_depend_on_the_others(threads, dtype, shape):
    made = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=made).to(dtype)
    x = torch.randn(FEW, shape[1], generator=made).to(dtype)
    alone = torch.cat([linear(row[None], weight) for row in x])
    exact = x.double() @ weight.double().T
    error = (alone.double() - exact).abs()
    # f32 sums of n products, each rounded by 2**-24 at most, then perhaps to bf16
    size = x.double().abs() @ weight.double().abs().T
    assert (error <= shape[1] * 2**-24 * size + 2**-8 * (dtype == torch.bfloat16) * size).all()
    for count in COUNTS:
        assert torch.equal(linear(x[:count], weight), alone[:count])


def bodies():
    shape = {"heads": 4, "kv_heads": 2, "head_dim": 32, "hidden": 64, "vocab": 211}
    yield random_body("gqa", **shape)
    yield random_body("gqa", layers=3, ffn=96, windows=(9, 9, None), gemma=Gemma(), **shape)


def decoded(runner, pool, sequences):
    """Logits after one more token of each sequence, which is then taken back."""
    for sequence in sequences:
        pool.append(sequence, 1)
    step = PagedStep(View(pool, sequences, [1] * len(sequences)))
    lengths = torch.tensor([s.length for s in sequences])
    logits = runner.forward(lengths % 211, lengths - 1, step, rows=torch.arange(len(sequences)))
    for sequence in sequences:
        pool.shorten(sequence, 1)
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", [0, 1], ids=["llama", "gemma"])
def test_a_sequence_decodes_to_the_same_logits_alone_and_in_a_batch(threads, dtype, which):
    made = list(bodies())[which]
    runner = Runner(made.body, {name: w.to(dtype) for name, w in made.weights.items()})
    pool = pool_for(runner, 64, sequences=FEW)
    sequences = [pool.open()[0] for _ in range(FEW)]
    for i, sequence in enumerate(sequences):
        pool.append(sequence, 5 + i)
        step = PagedStep(View(pool, [sequence], [5 + i]))
        tokens = torch.arange(i, 5 + 2 * i)
        runner.forward(tokens, torch.arange(5 + i), step, rows=torch.tensor([0]))
    alone = torch.cat([decoded(runner, pool, [s]) for s in sequences])
    assert len({tuple(row.tolist()) for row in alone}) == FEW
    for count in COUNTS:
        assert torch.equal(decoded(runner, pool, sequences[:count]), alone[:count])


def test_a_few_rows_are_those_of_torch(monkeypatch):
    """The kernel between two attentions against the layers written in torch."""
    for runner in bodies():
        tokens, places = torch.arange(FEW) * 7 % 211, torch.arange(FEW)
        got = []
        for few in (FEW, 0):
            monkeypatch.setattr(runners, "FEW", few)
            pool = pool_for(runner, FEW)
            sequence, _ = pool.open()
            pool.append(sequence, FEW)
            step = PagedStep(View(pool, [sequence], [FEW]))
            got.append(runner.forward(tokens, places, step, rows=places))
        assert torch.allclose(*got, rtol=1e-4, atol=1e-4 * float(got[1].abs().max()))
        assert not torch.equal(*got)
