"""Entries written one by one lie where many at a time do."""

import pytest

torch = pytest.importorskip("torch")

from kvproof.lab.elements import lab_type  # noqa: E402
from kvproof.lab.pool.codecs import Encoded  # noqa: E402
from kvproof.lab.pool.planes import FEW, Plane  # noqa: E402

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("block_size", [1, 5, 8, 16, 32])
@pytest.mark.parametrize("layout", ["columns", "slices", "rows"])
@pytest.mark.parametrize("name", ["f32", "bf16", "fp8_e4m3", "int8:32", "int4:32"])
def test_few_entries_are_written_as_many_are(name, layout, block_size):
    blocks = 9
    one, all_ = (
        Plane(lab_type(name), layout, blocks=blocks, block_size=block_size, heads=3, dim=64)
        for _ in range(2)
    )
    count = 2 * FEW + 5
    entries = torch.randint(blocks * block_size, (count,)).unique()
    x = torch.randn(len(entries), 3, 64, requires_grad=True)
    where, offsets = entries // block_size, entries % block_size
    for start in range(0, len(entries), 3):
        part = slice(start, start + 3)
        one.write(where[part], offsets[part], x[part])
    encoded = all_.codec.encode(x.detach())
    spare = torch.zeros(FEW + 1, dtype=torch.long)  # the first entry once more, until many
    order = torch.cat((spare, torch.arange(len(entries))))
    scales = None if encoded.scales is None else encoded.scales[order]
    all_.write_encoded(where[order], offsets[order], Encoded(encoded.data[order], scales))
    for few, many in zip(one.tensors, all_.tensors, strict=True):
        assert torch.equal(few, many)
