"""The pool: each verb, its twin, and what the tensors hold afterwards."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.errors import UsageError  # noqa: E402
from kvproof.kinds import FullSlot, LatentSlot, RecurrentSlot, SlidingSlot  # noqa: E402
from kvproof.lab.attention.dense import read_table  # noqa: E402
from kvproof.lab.attention.view import View  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.pool.blocks import PoolFullError  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402
from kvproof.lab.pool.swap import can_swap_in, swap_in, swap_out  # noqa: E402

pytestmark = pytest.mark.lab

FULL = FullSlot(layer=0, kv_heads=2, k_dim=8, v_dim=4)
SLIDING = SlidingSlot(layer=1, kv_heads=1, k_dim=8, v_dim=8, window=5)
LATENT = LatentSlot(layer=2, latent_dim=12, rope_dim=4, heads=4, nope_dim=8, value_dim=8)
STATE = RecurrentSlot(layer=3, shape=(2, 3, 3), mixer="gated_delta", heads=2)


def pool_of(*slots, blocks=8, block_size=4, types=None, **rest):
    return PagedPool(slots, types or cache_types(), blocks=blocks, block_size=block_size, **rest)


def vectors(pool, slot, count, seed):
    plane_dims = [(p.heads, p.dim) for p in pool.groups[pool.home[slot][0]].planes[0]]
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(count, h, d, generator=made) for h, d in plane_dims]


def add(pool, seq, count, seed, slot=0):
    pool.append(seq, count)
    made = vectors(pool, slot, count, seed)
    View(pool, [seq], [count]).write(slot, *made)
    return made


def held(pool, seq, slot=0, v_dim=4):
    group, index = pool.home[slot]
    return read_table(seq.tables[group], pool.groups[group].planes[index], v_dim)


def test_what_is_written_is_read():
    pool = pool_of(FULL)
    seq, cached = pool.open()
    first, second = add(pool, seq, 6, 1), add(pool, seq, 3, 2)
    k, v = held(pool, seq)
    assert cached == 0
    assert torch.equal(k, torch.cat([first[0], second[0]]))
    assert torch.equal(v, torch.cat([first[1], second[1]]))
    pool.check_integrity()


def test_a_fork_shares_until_it_writes():
    pool = pool_of(FULL)
    seq, _ = pool.open()
    base = add(pool, seq, 6, 1)
    twin = pool.fork(seq)
    assert pool.groups[0].books.held == 2
    own, other = add(pool, seq, 1, 2), add(pool, twin, 1, 3)
    assert pool.groups[0].books.held == 3  # the full block stays shared, the last one was copied
    assert torch.equal(held(pool, seq)[0], torch.cat([base[0], own[0]]))
    assert torch.equal(held(pool, twin)[0], torch.cat([base[0], other[0]]))
    pool.check_integrity()


def test_a_prompt_finds_the_sealed_blocks_of_another():
    pool = pool_of(FULL)
    prompt = list(range(10))
    seq, _ = pool.open(prompt)
    made = add(pool, seq, 10, 1)
    pool.settle(seq, prompt)
    pool.close(seq)
    again, cached = pool.open([*prompt[:8], 99, 98])
    assert cached == 8
    assert torch.equal(held(pool, again)[0], made[0][:8])
    _, cached = pool.open(prompt[:8])  # a prompt that is found whole leaves one token to compute
    assert cached == 4
    pool.check_integrity()


def test_a_sliding_prefix_needs_only_the_window():
    pool = pool_of(FULL, SLIDING)
    prompt = list(range(13))
    seq, _ = pool.open(prompt)
    pool.append(seq, 13)
    pool.settle(seq, prompt)
    assert seq.tables[1].dropped == 8
    pool.close(seq)
    again, cached = pool.open(prompt)
    assert cached == 12
    assert [len(t.blocks) for t in again.tables] == [3, 1]
    pool.check_integrity()


def test_a_full_pool_refuses_and_changes_nothing():
    pool = pool_of(FULL, SLIDING, blocks=[3, 2])
    seq, _ = pool.open()
    pool.append(seq, 8)
    assert not pool.can_append(seq, 1)
    with pytest.raises(PoolFullError, match="1 blocks asked"):
        pool.append(seq, 1)
    assert seq.length == 8
    pool.settle(seq)  # the window slides past the first block
    assert pool.can_append(seq, 1)
    pool.append(seq, 1)
    pool.check_integrity()


def test_swap_brings_every_byte_back():
    types = cache_types("int8:4", "int4:4")
    pool = pool_of(FULL, STATE, types=types)
    seq, _ = pool.open()
    add(pool, seq, 6, 1)
    View(pool, [seq], [1]).write_state(1, torch.ones(1, 2, 3, 3))
    before = held(pool, seq)
    copy = swap_out(pool, seq)
    assert pool.groups[0].books.free == 8
    filler, _ = pool.open()
    add(pool, filler, 4, 9)
    assert can_swap_in(pool, copy)
    back = swap_in(pool, copy)
    assert all(torch.equal(a, b) for a, b in zip(before, held(pool, back), strict=True))
    assert View(pool, [back], [1]).read_state(1).sum() == 18
    assert copy.bytes == 2 * 4 * FULL.entry_bytes(types) + STATE.fixed_bytes(types)
    pool.check_integrity()


def test_keep_packs_the_chosen_entries():
    pool = pool_of(FULL, groups="layer")
    seq, _ = pool.open()
    made = add(pool, seq, 11, 1)
    twin = pool.fork(seq)
    chosen = torch.tensor([0, 1, 7, 9, 10])
    pool.keep(seq, 0, chosen)
    assert torch.equal(held(pool, seq)[1], made[1][chosen])
    assert torch.equal(held(pool, twin)[1], made[1])
    assert len(seq.tables[0].blocks) == 2
    pool.check_integrity()


def test_keep_has_the_room_of_blocks_that_only_it_holds():
    """A full pool whose blocks are sealed, but held by nobody else, is room enough."""
    pool = pool_of(FULL, blocks=3)
    seq, _ = pool.open()
    (keys, _), tokens = add(pool, seq, 12, seed=1), list(range(12))
    pool.settle(seq, tokens)
    pool.keep(seq, 0, torch.arange(1, 12, 2))
    pool.check_integrity()
    assert torch.equal(held(pool, seq)[0], keys[1::2])
    assert pool.groups[0].books.held == 2


def test_counts_and_indices_that_make_no_sense_change_nothing():
    pool = pool_of(FULL)
    seq, _ = pool.open()
    add(pool, seq, 6, seed=1)
    for wrong in ([0, 6], [-1, 2], [3, 3], [4, 2]):
        with pytest.raises(UsageError, match="must rise"):
            pool.keep(seq, 0, torch.tensor(wrong))
    for verb in (pool.append, pool.shorten):
        with pytest.raises(UsageError, match="a count of -2"):
            verb(seq, -2)
    pool.check_integrity()
    assert (seq.length, seq.tables[0].entries) == (6, 6)


def test_an_evicted_sequence_is_never_shared():
    pool = pool_of(FULL)
    tokens = list(range(12))
    seq, _ = pool.open(tokens)
    pool.append(seq, 6)
    pool.keep(seq, 0, torch.tensor([0, 5]))
    pool.append(seq, 6)
    pool.settle(seq, tokens)
    assert pool.open(tokens)[1] == 0


def test_what_was_taken_back_is_found_no_more():
    """Sealed under the old tokens, then other tokens came: their names must be the new ones."""
    pool = pool_of(FULL)
    old, new = list(range(8)), [0, 1, 2, 3, 4, 9, 9, 9]
    seq, _ = pool.open(old)
    add(pool, seq, 8, 1)
    pool.settle(seq, old)
    pool.shorten(seq, 3)
    made = add(pool, seq, 3, 2)
    pool.settle(seq, new)
    again, cached = pool.open([*new, 5])
    assert cached == 8
    assert torch.equal(held(pool, again)[0][5:], made[0])
    pool.check_integrity()


def test_a_window_that_slid_is_not_taken_back():
    pool = pool_of(SLIDING)
    seq, _ = pool.open()
    pool.append(seq, 13)
    pool.settle(seq)
    assert (seq.tables[0].dropped, seq.tables[0].entries) == (8, 5)
    pool.shorten(seq, 1)
    with pytest.raises(UsageError, match="can't be taken back"):
        pool.shorten(seq, 1)


def test_closed_sequences_are_refused():
    pool = pool_of(FULL)
    seq, _ = pool.open()
    pool.close(seq)
    with pytest.raises(UsageError, match="closed"):
        pool.append(seq, 1)


@pytest.mark.parametrize("slot", [FULL, SLIDING, LATENT, STATE])
@pytest.mark.parametrize("k", ["f32", "bf16", "fp8", "int8:4", "int4:4"])
@pytest.mark.parametrize("v", ["f32", "int4:4"])
@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_storage_is_what_the_plan_says(slot, k, v, block_size):
    types = cache_types(k, v)
    pool = pool_of(slot, blocks=5, block_size=block_size, types=types)
    per_block = block_size * slot.entry_bytes(types) + slot.fixed_bytes(types)
    assert pool.allocated_bytes == 5 * per_block
