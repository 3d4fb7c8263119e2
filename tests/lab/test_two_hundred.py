"""Issue 5's bound: in f32 the same 200 greedy tokens as transformers' own cache, on every way.

Requests that begin alike go through one pool: after one another (prefix-shared), together
(batched), and in a pool too small for them (recomputed, swapped). Random bodies of full attention
and of latents, and SmolLM2-135M; recurrent and hybrid bodies run through PagedCache, swapped out
and in on the way.
"""

import pytest

torch = pytest.importorskip("torch")

from tests.lab.test_any_model import model_of  # noqa: E402

from kvproof.lab.batching import Batcher  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.experiments.material import text_tokens  # noqa: E402
from kvproof.lab.generation import generate  # noqa: E402
from kvproof.lab.models.as_transformers import to_transformers  # noqa: E402
from kvproof.lab.models.body import Latent  # noqa: E402
from kvproof.lab.models.sources import random_body  # noqa: E402
from kvproof.lab.paged_cache import PagedCache  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

COUNT = 200
SHARED = [5, 17, 99, 3, 42, 7, 8, 120, 77, 31, 2, 6, 64, 12, 9, 101, 55, 18]  # over a block of 16
PROMPTS = [[*SHARED, 23, 44], [*SHARED, 91], [*SHARED, 13, 14, 15]]
BODIES = ["llama", "mla", "smollm2"]
TOGETHER = [(name, way) for name in BODIES for way in ("batched", "recompute", "swap")]


def theirs(model, prompt, count=COUNT, **rest):
    return theirs_together(model, [prompt], count, **rest)[0]


def theirs_together(model, prompts, count=COUNT, **rest):
    """What transformers makes of a batch of prompts that are equally long."""
    ids = torch.tensor(prompts)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count,
                         do_sample=False, eos_token_id=None, pad_token_id=0, **rest)  # fmt: skip
    return out[:, ids.shape[1] :].tolist()


def made_of(name, request):
    """A runner and its prompts, which begin alike and end apart."""
    if name == "smollm2":
        text = text_tokens(60)
        return request.getfixturevalue("smollm"), [text[:18] + text[at : at + 2] for at in (20, 40)]
    return random_runner(name), PROMPTS


def random_runner(name):
    if name == "mla":
        latent = Latent(latent_dim=32, rope_dim=16, nope_dim=16, value_dim=24)
        return random_body("mla", heads=4, head_dim=16, hidden=64, ffn=96, vocab=131,
                           latent=latent)  # fmt: skip
    return random_body("gqa", heads=4, kv_heads=2, head_dim=32, hidden=64, ffn=128, vocab=211)


@pytest.fixture(scope="module")
def answers():
    """What `case` has found of each body: pytest would make it anew for every way."""
    return {}


@pytest.fixture(params=BODIES)
def case(request, answers):
    """A runner, its prompts, and transformers' tokens after each."""
    name = request.param
    if name not in answers:
        answers[name] = answer_of(*made_of(name, request))
    return answers[name]


def answer_of(runner, prompts):
    model = to_transformers(runner)
    if len({len(prompt) for prompt in prompts}) == 1:
        want = theirs_together(model, prompts)
    else:
        want = [theirs(model, prompt) for prompt in prompts]
    assert max(len(set(tokens)) for tokens in want) > 10, "the tokens collapsed and prove little"
    return runner, prompts, want


def pool_of(runner, blocks):
    return PagedPool(runner.body.slots, cache_types(), blocks=blocks, block_size=16)


def test_prefix_shared(case):
    runner, prompts, want = case
    pool = pool_of(runner, 40)
    made = [generate(runner, prompt, COUNT, cache=pool) for prompt in prompts]
    assert [out.tokens for out in made] == want
    assert [out.cached_tokens for out in made[1:]] == [16] * (len(prompts) - 1)


@pytest.mark.parametrize(("case", "way"), TOGETHER, indirect=["case"])
def test_together(case, way):
    """Each needs 14 blocks in the end: 60 hold them all, 20 one and a part of another."""
    runner, prompts, want = case
    small = way != "batched"
    pool = pool_of(runner, 20 if small else 60)
    batcher = Batcher(runner, pool, preemption=way if small else "recompute")
    requests = [batcher.add(prompt, COUNT) for prompt in prompts]
    batcher.run()
    assert [request.tokens for request in requests] == want
    assert (batcher.counters.preemptions > 0) == small
    assert batcher.counters.swapped_bytes > 0 or way != "swap"


@pytest.mark.parametrize("name", ["deepseek_v3", "mamba2", "jamba", "qwen3_next"])
def test_paged_cache_of_any_model(name):
    model = model_of(name)
    want = theirs(model, SHARED)
    cache = PagedCache(model.config, tokens=len(SHARED) + COUNT)
    assert theirs(model, SHARED, past_key_values=cache) == want
    # dropped, its first half computed again in one pass, a quarter more after a swap
    cache.reset()
    half, quarter = COUNT // 2, COUNT // 4
    begun = [*SHARED, *want[:half]]
    assert theirs(model, begun, quarter, past_key_values=cache) == want[half : half + quarter]
    if name != "mamba2":  # generate feeds a cache without attention the whole text again
        assert cache.swap_out() > 0
        cache.swap_in()
        begun += want[half : half + quarter]
        assert theirs(model, begun, quarter, past_key_values=cache) == want[half + quarter :]
    cache.pool.check_integrity()
    assert len(set(want)) > 8, "the tokens collapsed and prove little"
