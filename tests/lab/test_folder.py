"""A transformers model in a folder through the lab's own loop: transformers' tokens."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.lab.test_any_model import model_of, tokens_of  # noqa: E402

from kvproof.errors import InputError, UsageError  # noqa: E402
from kvproof.lab import load  # noqa: E402
from kvproof.lab.batching import Batcher  # noqa: E402
from kvproof.lab.experiments.sizes import _given  # noqa: E402
from kvproof.lab.generation import generate, pool_for  # noqa: E402
from kvproof.lab.models.folder import FolderTokenizer  # noqa: E402

pytestmark = [
    pytest.mark.lab,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

COUNT = 24


def saved(name, folder):
    """A tiny model in a folder, three prompts and transformers' own tokens after each."""
    model = model_of(name)
    model.save_pretrained(folder)
    prompts = torch.randint(5, 131, (3, 13), generator=torch.Generator().manual_seed(1))
    whole = tokens_of(model, count=COUNT, ids=prompts)
    want = [row[prompts.shape[1] :] for row in whole]
    assert max(len(set(row)) for row in want) > 5, "the tokens collapsed and prove little"
    return prompts.tolist(), want


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_one_by_one_and_together(name, tmp_path):
    prompts, want = saved(name, tmp_path)
    runner = load(tmp_path)
    for cache in ("paged", "contiguous", "none"):
        assert [generate(runner, p, COUNT, cache=cache).tokens for p in prompts] == want
    pool = pool_for(runner, 13 + COUNT, sequences=2)
    batcher = Batcher(runner, pool, max_batched_tokens=20, preemption="swap")
    requests = [batcher.add(prompt, COUNT) for prompt in prompts]
    batcher.run()
    assert [request.tokens for request in requests] == want
    assert (batcher.counters.preemptions > 0) == (name != "mistral")  # its windows leave room
    case = _given(str(tmp_path))
    assert case.real == case.planned


@pytest.mark.parametrize(
    ("name", "said"),
    [("deepseek_v3", "does not run latent slots"), ("lfm2", "does not run conv slots"),
     ("falcon", "has an attention of its own")],
)  # fmt: skip
def test_others_are_told_the_way(name, said, tmp_path):
    model_of(name).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=said) as caught:
        load(tmp_path)
    assert "PagedCache" in caught.value.hint


def test_a_folder_without_weights_or_tokenizer(tmp_path):
    model_of("llama").config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="transformers can't load it"):
        load(tmp_path)
    with pytest.raises(UsageError, match=r"no file .*tokenizer\.json"):
        FolderTokenizer(tmp_path)
