"""The decode kernels against plain attention over what the pool stores."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
numba = pytest.importorskip("numba")

from kvproof.kinds import FullSlot, LatentSlot, SlidingSlot  # noqa: E402
from kvproof.lab.attention.decode import kernels  # noqa: E402
from kvproof.lab.attention.dense import attend_dense  # noqa: E402
from kvproof.lab.attention.paged import (  # noqa: E402
    _prepare,
    can_decode,
    decode,
    decode_latent,
)
from kvproof.lab.attention.view import View  # noqa: E402
from kvproof.lab.elements import cache_types  # noqa: E402
from kvproof.lab.pool.pool import PagedPool  # noqa: E402

pytestmark = pytest.mark.lab


def filled(slot, types, lengths, block_size=16, blocks=200):
    """A pool whose sequences have one entry more than `lengths`, and the last step's view."""
    made = torch.Generator().manual_seed(1)
    pool = PagedPool([slot], types, blocks=blocks, block_size=block_size)
    sequences = []
    for n in lengths:
        seq, _ = pool.open()
        for count in (n, 1):
            pool.append(seq, count)
            shape = (count, slot.kv_heads)
            k = torch.randn(*shape, slot.k_dim, generator=made)
            v = torch.randn(*shape, slot.v_dim, generator=made)
            View(pool, [seq], [count]).write(0, k, v)
        sequences.append(seq)
    return View(pool, sequences, [1] * len(lengths))


CASES = [
    (4, 4, 64, 16, "f32", "f32"),
    (9, 3, 64, 16, "bf16", "bf16"),
    (8, 2, 128, 32, "fp8", "int8"),
    (32, 1, 128, 16, "int4", "int4:128"),
    (8, 8, 64, 48, "int4:32", "f32"),
    (6, 3, 96, 16, "int8:32", "bf16"),
]


def tolerances(*names):
    """Integers meet queries and weights that are rounded to 1/32767 (see `whole.py`).

    A number of int8 is up to 127 of its units, of int4 15 of units nine times as large.
    """
    whole = [n for n in names if n.startswith("int")]
    return {"atol": 3e-4 if any("int4" in n for n in whole) else 1e-4 if whole else 3e-6,
            "rtol": 1e-5}  # fmt: skip


def compare(view, heads, dim, names):
    q = torch.randn(len(view.sequences), heads, dim, generator=torch.Generator().manual_seed(2))
    assert can_decode(view, 0)
    got = decode(view, 0, q, dim**-0.5)
    want = attend_dense(view, 0, q, scale=dim**-0.5, v_dim=dim)
    assert torch.allclose(got, want, **tolerances(*names))


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "block_size", "k", "v"), CASES)
def test_the_kernel_equals_torch(heads, kv_heads, dim, block_size, k, v):
    slot = FullSlot(layer=0, kv_heads=kv_heads, k_dim=dim, v_dim=dim)
    view = filled(slot, cache_types(k, v), [5, 67, 1030], block_size)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        compare(view, heads, dim, (k, v))


@pytest.mark.parametrize("name", ["bf16", "int8:64", "int4:32"])
@pytest.mark.parametrize("block_size", [1, 2, 4, 5, 8, 16, 24, 32, 64, 128, 256])
def test_every_block_size(name, block_size):
    slot = FullSlot(layer=0, kv_heads=2, k_dim=64, v_dim=64)
    view = filled(slot, cache_types(name), [3, 70, 300], block_size, 400)
    compare(view, 8, 64, (name,))


def test_a_tail_of_small_weights_is_not_lost():
    """Each chunk is rounded by its own largest weight: only the first, of 64, loses half units."""
    slot = FullSlot(layer=0, kv_heads=1, k_dim=64, v_dim=64)
    pool = PagedPool([slot], cache_types("int8:64"), blocks=300, block_size=16)
    sequence, _ = pool.open()
    pool.append(sequence, 4095)
    k, v = torch.zeros(4095, 1, 64), torch.ones(4095, 1, 64)
    k[0], v[0] = 1.0, 0.0
    View(pool, [sequence], [4095]).write(0, k, v)
    pool.append(sequence, 1)
    view = View(pool, [sequence], [1])
    view.write(0, torch.zeros(1, 1, 64), torch.ones(1, 1, 64))
    q = torch.full((1, 4, 64), 11.0 / 64)
    tail, bound = 4095 * 2.718281828**-11, 64 * 0.5 / 32767
    assert torch.allclose(decode(view, 0, q, 1.0), torch.tensor(tail / (1 + tail)), atol=bound)


@pytest.mark.parametrize("window", [1, 20, 64])
def test_the_kernel_sees_the_window_only(window):
    slot = SlidingSlot(layer=0, kv_heads=2, k_dim=32, v_dim=32, window=window)
    view = filled(slot, cache_types(), [5, 40, 150])
    q = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(2))
    want = attend_dense(view, 0, q, scale=0.2, v_dim=32)
    assert torch.allclose(decode(view, 0, q, 0.2), want, atol=3e-6)


@pytest.mark.parametrize("window", [None, 40])
def test_what_a_block_held_before_is_not_read(window):
    """A tile that is seen in part has other positions: theirs may not matter, were they NaN."""
    size = {"layer": 0, "kv_heads": 1, "k_dim": 32, "v_dim": 32}
    slot = FullSlot(**size) if window is None else SlidingSlot(**size, window=window)
    pool = PagedPool([slot], cache_types("bf16"), blocks=8, block_size=16)
    for fill in (float("nan"), 1.0):
        sequence, _ = pool.open()
        for count in (100 if fill != 1 else 69, 1):
            pool.append(sequence, count)
            x = torch.full((count, 1, 32), fill)
            view = View(pool, [sequence], [count])
            view.write(0, x, x)
        if fill != 1:
            pool.close(sequence)
    assert torch.allclose(decode(view, 0, torch.ones(1, 2, 32), 0.1), torch.ones(1, 2, 32))


def test_large_scores_do_not_overflow():
    slot = FullSlot(layer=0, kv_heads=1, k_dim=32, v_dim=32)
    view = filled(slot, cache_types(), [100])
    q = torch.full((1, 2, 32), 50.0)
    want = attend_dense(view, 0, q, scale=1.0, v_dim=32)
    assert torch.allclose(decode(view, 0, q, 1.0), want, atol=1e-5)


def test_a_kernel_on_disk_is_not_compiled_again(tmp_path, monkeypatch):
    """The second dispatcher stands for the next process; a damaged file is compiled anew."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    slot = FullSlot(layer=0, kv_heads=1, k_dim=32, v_dim=32)
    view = filled(slot, cache_types(), [100])
    q, outputs, hits = torch.ones(1, 2, 32), [], []
    for damaged in (False, False, True):
        kernels.cache_clear()
        for file in tmp_path.rglob("*.kernel") if damaged else ():
            file.write_bytes(b"no kernel")
        view = View(view.pool, view.sequences, [1])
        outputs.append(decode(view, 0, q, 0.1))
        run = _prepare(view, 0, 2).run
        hits.append(sum(run.stats.cache_hits.values()))
    assert hits == [0, 1, 0]
    assert all(torch.equal(outputs[0], out) for out in outputs)


def test_a_kernel_under_another_ones_name_is_not_loaded(tmp_path, monkeypatch):
    """Two processes that compile at once can't give each other their kernels."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    slot, q = FullSlot(layer=0, kv_heads=1, k_dim=32, v_dim=32), torch.ones(1, 2, 32)
    kernels.cache_clear()
    views = [filled(slot, cache_types(kind), [100]) for kind in ("f32", "bf16")]
    before = [decode(view, 0, q, 0.1) for view in views]
    files = [file for file in tmp_path.rglob("*.kernel") if file.stat().st_size > 100_000]
    assert len(files) == 2
    held = [file.read_bytes() for file in files]
    for file, other in zip(files, reversed(held), strict=True):
        file.write_bytes(other)
    kernels.cache_clear()
    for view, out in zip(views, before, strict=True):
        again = View(view.pool, view.sequences, [1])
        assert torch.equal(decode(again, 0, q, 0.1), out)
        assert not sum(_prepare(again, 0, 2).run.stats.cache_hits.values())


ASKED = """
import sys
from tests.lab.test_attention import FullSlot, cache_types, compare, filled
for queries in map(int, sys.argv[1:]):
    slot = FullSlot(layer=0, kv_heads=1, k_dim=32, v_dim=32)
    compare(filled(slot, cache_types(), [100]), queries, 32, ("f32",))
"""


def test_kernels_that_two_processes_compiled_work_in_a_third(tmp_path):
    """Their inner functions bore one name, and the linker took the first process's for both."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    for asked in (["3"], ["4"], ["3", "4"], ["4", "3"]):
        run = [sys.executable, "-c", ASKED, *asked]
        done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("*.kernel"))) == 2


def test_odd_shapes_are_left_to_torch():
    slot = FullSlot(layer=0, kv_heads=1, k_dim=24, v_dim=24)
    assert not can_decode(filled(slot, cache_types(), [5]), 0)


@pytest.mark.parametrize("kind", ["f32", "bf16", "fp8", "int8", "int4:32"])
@pytest.mark.parametrize("heads", [4, 40])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_latent_kernel_equals_torch(kind, heads, threads):
    torch.set_num_threads(threads)
    slot = LatentSlot(layer=0, latent_dim=128, rope_dim=64, heads=heads, nope_dim=8, value_dim=8)
    made = torch.Generator().manual_seed(1)
    pool = PagedPool([slot], cache_types(kind), blocks=200, block_size=8)
    sequences = []
    for n in (3, 45, 1100):
        seq, _ = pool.open()
        for count in (n, 1):
            pool.append(seq, count)
            View(pool, [seq], [count]).write(0, torch.randn(count, 1, 192, generator=made))
        sequences.append(seq)
    view = View(pool, sequences, [1, 1, 1])
    q = torch.randn(3, heads, 192, generator=made)
    assert can_decode(view, 0)
    got = decode_latent(view, 0, q, 0.1, 128)
    want = attend_dense(view, 0, q, scale=0.1, v_dim=128)
    # A score of 192 numbers moves by 3e-5 (one sigma) where queries are rounded; values reach 4.
    bound = {"atol": 3e-4, "rtol": 1e-5} if kind.startswith("int") else tolerances(kind)
    assert torch.allclose(got, want, **bound)
