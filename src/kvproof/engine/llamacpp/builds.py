"""What changed in llama.cpp from build to build, as a dated table.

Build numbers of changes are those of the days they were merged, give or take a few builds.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Literal

import msgspec

from kvproof.engine.release import release_number
from kvproof.errors import UsageError


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that hold from build `first` on."""

    first: int
    source: str
    pad_flash: int = 256
    pad_plain: int = 256
    pad_sequence: bool = True
    sliding_cache: bool = True
    flash_attn: Literal["on", "off", "auto"] = "auto"
    auto_slots: int = 4
    multi_stream: bool = True
    output_first: bool = True
    """The output goes to a GPU before any layer; before, behind all layers."""
    inputs: Literal["tokens", "either", "mixed"] = "mixed"
    """Ways into the graph: token numbers; vectors beside them; both in one batch."""
    indexed_rows: bool = True
    """Keys and values go to cells by a list of row numbers, which is an input."""
    counts_outputs: bool = True
    """Logits are reserved for the outputs there can be; before, for every token."""
    rotates: bool = True
    """Keys and values are turned before they are quantized."""
    joint_gates: bool = True
    """A gate and what it lets through are multiplied into a third tensor; before, in place."""
    keeps_latents: bool = True
    """Latent attention caches the latent; before, every head's keys and values."""
    half_masks: bool = True
    """With flash attention masks come in f16; before, as f32 with a copy."""

    def padding(self, flash: bool) -> int:
        """Cells are a multiple of this many."""
        return self.pad_flash if flash else self.pad_plain


# PR 12801 (2025-04-15): the latent is cached. PR 13194 (2025-05-20): caches of their own for
# sliding layers. PR 14158 (2025-06-29): gated units in one step. PR 14363 (2025-07): a stream per
# sequence. PR 14959 (2025-08-02): rows by index. PR 15434 (2025-08-30): flash attention "auto". PR
# 16812 (2025-10-28): no padding. PR 16736 (2025-11-02): four slots over one pool. PR 17046
# (2025-11-07): padding of 256 again. PR 18148 (2025-12-18): the output on a GPU first. PR 18898
# (2026-01-18): vectors as inputs. PR 21038 (2026-04-01): rotation before quantizing. Outputs
# counted, masks in f16, tokens and vectors mixed: half-way between two builds whose libraries were
# asked. Builds of a day are good to some tens.
_FIRST = Build(
    first=0, source="PR 7257", pad_plain=32, pad_sequence=False, sliding_cache=False,
    flash_attn="off", auto_slots=1, multi_stream=False, inputs="tokens", indexed_rows=False,
    half_masks=False, counts_outputs=False, output_first=False,
    rotates=False, joint_gates=False, keeps_latents=False,
)  # fmt: skip
_CHANGES: tuple[dict[str, Any], ...] = (
    {"first": 5135, "source": "PR 12801", "keeps_latents": True},
    {"first": 5434, "source": "PR 13194", "sliding_cache": True},
    {"first": 5780, "source": "PR 14158", "joint_gates": True},
    {"first": 5928, "source": "PR 14363", "multi_stream": True},
    {"first": 6073, "source": "PR 14959", "indexed_rows": True},
    {"first": 6325, "source": "PR 15434", "flash_attn": "auto"},
    {"first": 6869, "source": "PR 16812", "pad_flash": 1, "pad_plain": 1},
    {"first": 6925, "source": "PR 16736", "auto_slots": 4},
    {"first": 6981, "source": "PR 17046", "pad_flash": 256, "pad_plain": 256, "pad_sequence": True},
    {"first": 7450, "source": "PR 18148", "output_first": True},
    {"first": 7770, "source": "PR 18898", "inputs": "either"},
    {"first": 8640, "source": "PR 21038", "rotates": True},
    {"first": 9403, "source": "libraries of b9093, b9713", "counts_outputs": True},
    {"first": 9830, "source": "libraries of b9093, b10566", "half_masks": True},
    {"first": 11306, "source": "libraries of b11063, b11549", "inputs": "mixed"},
)
BUILDS = tuple(
    accumulate(_CHANGES, lambda row, change: msgspec.structs.replace(row, **change), initial=_FIRST)
)


def releases() -> tuple[str, ...]:
    """The builds from which other rules hold, oldest first."""
    return tuple(f"b{build.first}" for build in BUILDS)


def build_of(version: str | None) -> Build:
    """The rules of `b11549`, `11549` or an unnamed (then the newest) build."""
    if version is None:
        return BUILDS[-1]
    number = release_number(version)
    if number is None or len(number) > 1:
        raise UsageError(
            f"llama.cpp has builds, not versions like {version[:30]!r}",
            hint="write llamacpp@b11549",
        )
    return max((row for row in BUILDS if row.first <= number[0]), key=lambda row: row.first)
