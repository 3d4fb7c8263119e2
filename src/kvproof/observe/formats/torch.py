"""Torch's own lines, printed under any engine that runs on it."""

from __future__ import annotations

from kvproof.observe.rows import Row

TORCH_ROWS = (
    Row("cuda out of memory", r"tried to allocate {oom_request:size}", "any", "torch"),
    # "capacty" is torch 2.1's spelling.
    Row("of which", r"has (?:a total capaci?ty of )?{total_gpu_memory:size} of which "
        r"{oom_free:size} is free", "any", "torch"),
    # torch 1.x and 2.0
    Row("total capacity;", r"\(GPU \d{1,3}; {total_gpu_memory:size} total capacity; .{0,80}? "
        r"{oom_free:size} free;", "any", "torch"),
    Row("memory in use", r"process \d{1,9} has {oom_others:size} memory in use", "any", "torch"),
)  # fmt: skip
