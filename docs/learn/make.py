"""Write the pages of docs/learn by running experiments: python docs/learn/make.py [NAME ...]"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from kvproof.lab import experiments
from kvproof.lab.experiments.result import Experiment

FOLDER = Path(__file__).resolve().parent

# What each page says before its figures.
TEXTS = {
    "bytes": (
        "A full-attention slot keeps one key and one value per KV head and token: "
        "`2 x layers x kv_heads x head_dim x bytes x tokens`. Sliding windows keep fewer "
        "of the same entries, latent attention one short vector, recurrent layers a state of fixed "
        "size. Integers carry four bytes of scale per 64 numbers, which the short formula forgets."
    ),
    "cache_or_not": (
        "A causal model's keys and values never change once computed. Without a cache every step "
        "runs the whole sequence again: `G x (P + G/2)` tokens through the model instead of `G`."
    ),
    "attention": (
        "Query heads can share key and value heads (GQA, MQA), or all read one compressed vector "
        "(MLA). The cache shrinks by the sharing. One query head per key is limited by memory; 32 "
        "heads on one vector are limited by arithmetic."
    ),
    "quantize": (
        "An error in a key moves the weights of the softmax, an error in a value only the average "
        "it enters. So keys need more bits than values: compare int4 keys with int8 values against "
        "int8 keys with int4 values, which take the same bytes."
    ),
    "evict": (
        "A window forgets the start, and with it the first tokens that models lean on; keeping "
        "four of those (sinks) mends the perplexity. But what was evicted is gone: a number told "
        "at the start is not recalled, although the perplexity looks well."
    ),
    "blocks": (
        "Blocks of a fixed size end fragmentation; a sequence wastes at most the rest of its last "
        "block. Larger blocks waste more, smaller ones mean longer tables."
    ),
    "prefix": (
        "Blocks are named by a chain of hashes over their tokens, so a second prompt finds the "
        "blocks of an equal beginning. Only whole blocks are shared, and at least one token is "
        "always computed, for its logits."
    ),
    "preempt": (
        "When sequences grow beyond the pool, one is paused. Its bytes can be copied out and back, "
        "or dropped and computed again in one parallel pass."
    ),
    "batch": (
        "A decode step reads all weights for one token of each sequence, so more sequences cost "
        "little, until the pool is full and the next request has to wait or pause another."
    ),
    "bandwidth": (
        "Each decode step reads every cached entry once. Time is linear in context, and at one "
        "query per key it is the bytes over what the memory delivers; narrower types are faster "
        "until converting them is what takes the time."
    ),
}  # fmt: skip


def cell(value: object) -> str:
    """A value as the tables show it."""
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def page(result: Experiment) -> str:
    """The page of one experiment."""
    command = result.name.replace("_", "-")
    rows = [[cell(value) for value in row] for row in result.rows]
    checks = [
        [c.name, cell(c.predicted), cell(c.measured), c.unit, "equal" if c.predicted == c.measured
         else "within bound" if c.holds else "**differs**"]
        for c in result.checks
    ]  # fmt: skip
    parts = [
        f"# {result.title}",
        TEXTS[result.name],
        f"Made by `kvproof lab {command}`. {result.question}",
        f"![{result.title}]({result.name}.svg)",
        table(list(result.columns), rows),
    ]
    if checks:
        head = ["predicted against measured", "predicted", "measured", "unit", ""]
        parts.append(table(head, checks))
    return "\n\n".join([*parts, *result.notes]) + "\n"


def draw(result: Experiment) -> None:
    """The chart as SVG where vl-convert is installed, and its specification beside it."""
    from kvproof.surfaces.charts import base, save

    spec = base(result.title, result.question, **result.chart)
    try:
        save(spec, str(FOLDER / f"{result.name}.svg"))
    except ImportError:
        (FOLDER / f"{result.name}.vl.json").write_text(json.dumps(spec, indent=1))


def main() -> None:
    """Run the named experiments, or all."""
    torch.set_num_threads(1)
    for name in sys.argv[1:] or list(experiments.EXPERIMENTS):
        result = getattr(experiments, name)()
        (FOLDER / f"{name}.md").write_text(page(result), encoding="utf-8")
        draw(result)
        print(name, "holds" if result.holds else "DIFFERS", flush=True)


if __name__ == "__main__":
    main()
