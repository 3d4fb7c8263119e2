"""What is loaded beside the model: a draft model, a projector for media, LoRA adapters.

Their files are read where they are on this machine, or named in the catalogue; others are named
as not computed. Source: common/speculative.cpp (common_speculative_init_result), tools/mtmd and
llama-adapter.cpp (b11549): a draft has a context of the target's cells and sequences.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvproof.engine.drafts import DraftCache
from kvproof.engine.llamacpp.context import Context
from kvproof.engine.llamacpp.flags import Flags
from kvproof.engine.llamacpp.layout import predicting_slots
from kvproof.errors import KvproofError
from kvproof.kinds import Types, element_type
from kvproof.model.gguf import read_file
from kvproof.model.load import load_offline
from kvproof.model.types import Model
from kvproof.terms import Term

_MOST_ADAPTERS = 64


class Companions(msgspec.Struct, frozen=True, kw_only=True):
    """A draft model, terms of files by name and size, and what could not be read."""

    draft: Model | None = None
    files: tuple[tuple[str, str, int], ...] = ()
    unread: tuple[str, ...] = ()


NONE = Companions()


def companions_of(flags: Flags) -> Companions:
    """What the flags load beside the model."""
    files: list[tuple[str, str, int]] = []
    unread: list[str] = []
    named = [("projector", "--mmproj", flags.mmproj)] if flags.mmproj else []
    for word, given in (("--lora", flags.lora), ("--lora-scaled", flags.lora_scaled)):
        named += [("adapter", word, entry) for entry in given[:_MOST_ADAPTERS]]
    for name, word, source in named:
        size = _tensor_bytes(source)
        if size is None:
            unread.append(f"{word} {source[:80]}: its {name} is no file here, not computed")
        else:
            files.append((name, source, size))
    draft = load_offline(flags.spec_draft_model) if flags.spec_draft_model else None
    if flags.spec_draft_model and draft is None:
        unread.append(
            f"--spec-draft-model {flags.spec_draft_model[:80]}: neither a file here nor a known "
            "name, its draft model is not computed"
        )
    return Companions(draft=draft, files=tuple(files), unread=tuple(unread))


def draft_flags(flags: Flags, context: Context) -> Flags:
    """The flags of the draft's own context: the target's cells, its own cache types and layers."""
    return msgspec.structs.replace(
        flags,
        ctx_size=context.cells,
        parallel=context.sequences,
        kv_unified=context.unified,
        cache_type_k=flags.spec_draft_type_k,
        cache_type_v=flags.spec_draft_type_v,
        n_gpu_layers=flags.spec_draft_ngl,
        n_cpu_moe=flags.spec_draft_n_cpu_moe,
        cpu_moe=flags.spec_draft_cpu_moe,
        n_outputs_max=context.sequences,
        n_rs_seq=0,
        spec_type=(),
        mtp=False,
        spec_draft_model=None,
    )


def drafted(model: Model, flags: Flags) -> DraftCache | None:
    """What a draft keeps of each sequence: its own model, or the model's layers for it."""
    types = Types(flags.spec_draft_type_k, flags.spec_draft_type_v, element_type("f32"))
    own = companions_of(flags).draft
    if own is not None:
        return DraftCache(name=own.name, slots=own.slots, types=types)
    if not flags.drafts_by_mtp:
        return None
    return DraftCache(name="draft-mtp", slots=predicting_slots(model), types=types)


def file_terms(companions: Companions, place: str) -> tuple[Term, ...]:
    """One term a file, on the device `place`."""
    return tuple(
        Term(
            name=f"{name} {Path(source).name}{place}",
            value=size,
            unit="B",
            formula=f"tensors of the file = {size:,} B",
            source="the file's own table of tensors",
        )
        for name, source, size in companions.files
    )


def _tensor_bytes(source: str) -> int | None:
    path = Path(source).expanduser()
    try:
        return read_file(path).tensor_bytes if path.is_file() else None
    except (KvproofError, OSError):
        return None
