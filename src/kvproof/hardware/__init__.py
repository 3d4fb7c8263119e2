"""Accelerators and their links: one data table with sources, and the lookups over it."""

from kvproof.hardware.accelerators import (
    Accelerator,
    Basis,
    Flops,
    MigProfile,
    accelerator,
    accelerators,
    parse_gpu_list,
    parse_gpus,
    parse_ranks,
)

__all__ = [
    "Accelerator",
    "Basis",
    "Flops",
    "MigProfile",
    "accelerator",
    "accelerators",
    "parse_gpu_list",
    "parse_gpus",
    "parse_ranks",
]
