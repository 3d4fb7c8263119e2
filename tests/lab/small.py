"""Sizes at which each experiment runs in a moment."""

SMALL = {
    "bytes": {"blocks": 8},
    "cache_or_not": {"prompt": 20, "output": 5},
    "attention": {"context": 256},
    "quantize": {"tokens": 48, "pairs": (("bf16", "bf16"), ("int8", "int4")), "context": 256},
    "blocks": {"context": 256, "sizes": (1, 16, 64)},
    "prefix": {"length": 48, "shared": (0, 33, 47)},
    "preempt": {"lengths": (20, 40)},
    "batch": {"prompt": 10, "output": 7, "fits": 2, "offered": (1, 3)},
    "parallel": {"prompt": 5, "output": 3},
    "bandwidth": {"contexts": (256, 512), "dtypes": ("f32", "int8:128")},
    "evict": {"tokens": 96, "budgets": (48,), "needles": 4},
}
