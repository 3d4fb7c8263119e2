"""Random lives of sequences in a small pool, against a model that keeps every vector in a list.

Three pools: full and sliding layers; these and a recurrent state; these, latents (which share the
full layers' tables) and a convolution's state.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule  # noqa: E402

from kvproof.errors import UsageError  # noqa: E402
from kvproof.kinds import (  # noqa: E402
    ConvSlot,
    FullSlot,
    LatentSlot,
    RecurrentSlot,
    SlidingSlot,
)
from kvproof.lab.attention.dense import read_table  # noqa: E402
from kvproof.lab.attention.view import View  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.pool.blocks import PoolFullError  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402
from kvproof.lab.pool.swap import can_swap_in, swap_in, swap_out  # noqa: E402

pytestmark = pytest.mark.lab

WINDOW = 6
FULL = FullSlot(layer=0, kv_heads=1, k_dim=2, v_dim=2)
SLIDING = SlidingSlot(layer=1, kv_heads=1, k_dim=2, v_dim=2, window=WINDOW)
STATE = RecurrentSlot(layer=2, shape=(2,), mixer="test", heads=1)
CONV = ConvSlot(layer=2, channels=1, kernel=2, mixer="test")
LATENT = LatentSlot(layer=3, latent_dim=1, rope_dim=1, heads=1, nope_dim=1, value_dim=1)


def entry(token, position, slot):
    """The vector a token leaves: it depends on everything a real one would, as seen by tests."""
    return [float(token), float(position * 10 + slot)]


class Lives(RuleBasedStateMachine):
    """`truth` maps each live sequence to its tokens and, by group, the positions it still holds."""

    slots = (FULL, SLIDING)
    states = ()  # numbers of the slots that keep a state, all in one group

    def __init__(self):
        super().__init__()
        self.pool = PagedPool(self.slots, cache_types(), block_size=4,
                              blocks=[9, 7, 5] if self.states else [9, 7])  # fmt: skip
        self.truth = {}
        self.swapped = []

    def pick(self, data):
        return list(self.truth)[data.draw(st.sampled_from(range(len(self.truth))))]

    def put(self, seq, tokens):
        """Append tokens to the pool and to the truth; nothing at all when the pool is full."""
        known, positions = self.truth[seq]
        if not self.pool.can_append(seq, len(tokens)):
            before = (seq.length, [list(t.blocks) for t in seq.tables])
            with pytest.raises(PoolFullError):
                self.pool.append(seq, len(tokens))
            assert before == (seq.length, [list(t.blocks) for t in seq.tables])
            return
        start = len(known)
        self.pool.append(seq, len(tokens))
        view = View(self.pool, [seq], [len(tokens)])
        for slot in set(range(len(self.slots))) - set(self.states):
            rows = [entry(t, start + i, slot) for i, t in enumerate(tokens)]
            x = torch.tensor(rows)[:, None]
            view.write(slot, *((x, -x) if self.slots[slot].kind != "latent" else (x,)))
        for slot in self.states:
            state = torch.tensor([float(sum(known) + sum(tokens)), float(slot)])
            view.write_state(slot, state.view(1, *self.pool.states([seq], slot).shape[1:]))
        known += tokens
        for held in positions:
            held += range(start, len(known))
        self.pool.settle(seq, known)

    @precondition(lambda self: len(self.truth) < 4)
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def open(self, tokens):
        seq, cached = self.pool.open(tokens)
        self.truth[seq] = (list(tokens[:cached]), [list(range(cached)), list(range(cached))])
        self.put(seq, tokens[cached:])

    @precondition(lambda self: self.truth)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def append(self, data, tokens):
        self.put(self.pick(data), tokens)

    @precondition(lambda self: self.truth and len(self.truth) < 4)
    @rule(data=st.data())
    def fork(self, data):
        seq = self.pick(data)
        if not self.pool.can_fork(seq):
            with pytest.raises(PoolFullError):
                self.pool.fork(seq)
            return
        tokens, positions = self.truth[seq]
        self.truth[self.pool.fork(seq)] = (list(tokens), [list(p) for p in positions])

    @precondition(lambda self: self.truth)
    @rule(data=st.data(), count=st.integers(1, 5))
    def shorten(self, data, count):
        """The last tokens are taken back, or it is refused and nothing changes."""
        seq = self.pick(data)
        tokens, positions = self.truth[seq]
        full, sliding = seq.tables[:2]
        slid = sliding.dropped and sliding.entries - count < WINDOW - 1
        if self.states or slid or count > min(full.entries, sliding.entries):
            with pytest.raises(UsageError, match="can't be taken back"):
                self.pool.shorten(seq, count)
            return
        self.pool.shorten(seq, count)
        del tokens[-count:]
        for held in positions:
            del held[-count:]

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def close(self, data):
        seq = self.pick(data)
        del self.truth[seq]
        self.pool.close(seq)

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def evict(self, data):
        seq = self.pick(data)
        table = seq.tables[0]
        if not table.entries:
            return
        chosen = sorted(data.draw(st.sets(st.integers(0, table.entries - 1), min_size=1)))
        try:
            self.pool.keep(seq, 0, torch.tensor(chosen))
        except PoolFullError:
            return  # shared blocks had to stay
        held = self.truth[seq][1]
        held[0] = [held[0][i] for i in chosen]

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def swap_out(self, data):
        seq = self.pick(data)
        self.swapped.append((swap_out(self.pool, seq), self.truth.pop(seq)))

    @precondition(lambda self: self.swapped and len(self.truth) < 4)
    @rule()
    def swap_in(self):
        copy, truth = self.swapped[0]
        if can_swap_in(self.pool, copy):
            self.truth[swap_in(self.pool, copy)] = truth
            self.swapped.pop(0)

    @rule()
    def forget_cached(self):
        for group in self.pool.groups:
            group.books.drop_cached()

    @invariant()
    def books_balance(self):
        self.pool.check_integrity()

    @invariant()
    def every_visible_entry_is_true(self):
        for seq, (tokens, positions) in self.truth.items():
            assert seq.length == len(tokens)
            for slot in set(range(len(self.slots))) - set(self.states):
                at, index = self.pool.home[slot]
                table, planes = seq.tables[at], self.pool.groups[at].planes[index]
                k, v = read_table(table, planes, 2)
                kept = positions[at][-table.entries :] if table.entries else []
                assert k[:, 0].tolist() == [entry(tokens[p], p, slot) for p in kept]
                assert torch.equal(v, -k if len(planes) == 2 else k)
            assert seq.tables[1].entries >= min(len(tokens), WINDOW - 1)

    def teardown(self):
        for seq in list(self.truth):
            self.pool.close(seq)
        self.pool.check_integrity()
        assert all(g.books.held == 0 for g in self.pool.groups)


class LivesWithState(Lives):
    slots = (FULL, SLIDING, STATE)
    states = (2,)

    @invariant()
    def states_are_true(self):
        for seq, (tokens, _) in self.truth.items():
            for slot in self.states if seq.tables[2].blocks else ():
                state = View(self.pool, [seq], [0]).read_state(slot)
                assert state.flatten().tolist() == [sum(tokens), slot]


class LivesOfAllKinds(LivesWithState):
    slots = (FULL, SLIDING, STATE, CONV, LATENT)
    states = (2, 3)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLivesWithState = LivesWithState.TestCase
TestLivesWithState.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestLivesOfAllKinds = LivesOfAllKinds.TestCase
TestLivesOfAllKinds.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
