"""kvproof models and kvproof gpus: what is known without a network."""

from __future__ import annotations

from typing import Any

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
@click.option(
    "--coverage", is_flag=True, help="Every architecture: its kinds, and how it was verified."
)
def models(words: tuple[str, ...], as_json: bool, coverage: bool) -> int:
    """The bundled catalogue; WORDS narrow it down."""
    from kvproof.errors import UsageError

    if coverage:
        from kvproof.surfaces.coverage import coverage_rows

        head, rows = ["architecture", "kinds", "verified by"], coverage_rows(words)
    else:
        head, rows = ["model", "type", "context", "weights", "source"], _model_rows(words)
    if not rows:
        raise UsageError(
            f"nothing matches {' '.join(words)[:80]!r}", hint="kvproof models lists all"
        )
    _emit("models", head, rows, as_json)
    if not coverage:
        from kvproof.model.catalog import catalog_date

        click.echo(f"note: {len(rows)} of the catalogue of {catalog_date()}", err=True)
    return 0


_CONTEXT = (
    "max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length",
    "max_sequence_length",
)  # fmt: skip
"""Where configs say how long a text may be."""


def _model_rows(words: tuple[str, ...]) -> list[list[str]]:
    import msgspec

    from kvproof.model.catalog import entries
    from kvproof.model.config import resolve
    from kvproof.model.read import weights_known

    out = []
    for name, entry in entries().items():
        config: dict[str, Any] = msgspec.json.decode(entry.config)
        inner = config.get("text_config") or config
        context = next((n for key in _CONTEXT if (n := inner.get(key))), "")
        row = [
            name,
            str(config.get("model_type", "")),
            f"{context:,}" if context else "",
            "known" if weights_known(resolve(config)) else "unknown",
            entry.source + (f" [{entry.licence}]" if entry.licence else ""),
        ]
        if all(word.lower() in " ".join(row).lower() for word in words):
            out.append(row)
    return out


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def gpus(words: tuple[str, ...], as_json: bool) -> int:
    """GPUs and other accelerators; WORDS narrow the list down."""
    from kvproof.errors import UsageError
    from kvproof.hardware import accelerators

    head = ["gpu", "vendor", "memory", "basis", "bandwidth", "bf16 dense", "fp8 dense", "link"]
    found = [
        (gpu, row)
        for gpu, row in ((gpu, _gpu_row(gpu)) for gpu in accelerators())
        if all(word.lower() in " ".join(row).lower() for word in words)
    ]
    if not found:
        raise UsageError(f"nothing matches {' '.join(words)[:80]!r}", hint="kvproof gpus lists all")
    if as_json:
        from kvproof.surfaces.document import document

        click.echo(document("gpus", inputs={}, result=[gpu for gpu, _ in found]))
        return 0
    _emit("gpus", head, [row for _, row in found], as_json)
    return 0


def _gpu_row(gpu: Any) -> list[str]:
    from kvproof.units import show_bytes

    link = gpu.link_bytes_per_s
    return [
        gpu.name,
        gpu.vendor,
        show_bytes(gpu.memory_bytes),
        gpu.memory_basis,
        f"{gpu.memory_bandwidth / 1e12:.2f} TB/s",
        _rate(gpu, "bf16"),
        _rate(gpu, "fp8"),
        f"{link / 1e9:,.0f} GB/s each way" if link else "-",
    ]


def _rate(gpu: Any, dtype: str) -> str:
    """Dense operations a second, and the type that is really multiplied where it is another."""
    used, rate = gpu.compute_rate(dtype)
    return f"{rate / 1e12:,.0f} TFLOP/s" + (f" (as {used})" if used != dtype else "")


_PROSE = ("source", "verified by")


def _emit(command: str, head: list[str], rows: list[list[str]], as_json: bool) -> None:
    if as_json:
        from kvproof.surfaces.document import document

        result = [dict(zip(head, row, strict=True)) for row in rows]
        click.echo(document(command, inputs={}, result=result))
        return
    from kvproof.surfaces.text import table

    click.echo(table(head, rows, left=2, prose=head[-1] in _PROSE))
