"""llama.cpp: a draft model, a projector and adapters beside the model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.command import read_command

TARGET, DRAFT = "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B"


def terms(**flags: object) -> dict[str, float]:
    model = kvproof.load_model(TARGET)
    budget = kvproof.budget(model, Deployment("llamacpp", ctx_size=8192, **flags))
    return {term.name: term.value for term in budget.terms}


def test_a_draft_has_a_context_of_its_own() -> None:
    both = terms(spec_draft_model=DRAFT, gpu="RTX-4090")
    alone = kvproof.budget(
        kvproof.load_model(DRAFT),
        Deployment("llamacpp", ctx_size=8192, gpu="RTX-4090", n_outputs_max=4),
    )
    for term in alone.terms:
        if term.name.startswith(("weights", "K cache", "V cache", "compute buffer")):
            assert both[f"draft {term.name}"] == term.value
    plain = terms(gpu="RTX-4090")
    drawn = sum(size for name, size in both.items()
                if name.startswith("draft") and "host" not in name)  # fmt: skip
    outputs = both["compute buffer"] - plain["compute buffer"]  # logits of drafted tokens too
    assert plain["left free"] - both["left free"] == drawn + outputs
    halved = terms(spec_draft_model=DRAFT, gpu="RTX-4090", spec_draft_type_k="q8_0")
    assert halved["draft K cache"] == both["draft K cache"] * 34 / 64
    hosted = terms(spec_draft_model=DRAFT, gpu="RTX-4090", spec_draft_ngl=0)
    assert "draft K cache" not in hosted
    assert hosted["draft K cache, host"] == both["draft K cache"]


def test_files_beside_the_model_take_their_tensors_bytes(tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_type("adapter")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((8, 64), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = terms(lora=str(path), mmproj=str(path), gpu="RTX-4090")
    assert found["adapter adapter.gguf"] == found["projector adapter.gguf"] == 1024
    kept = terms(lora_scaled=f"{path}:0.5", mmproj=str(path), mmproj_offload=False, gpu="RTX-4090")
    assert kept["adapter adapter.gguf"] == kept["projector adapter.gguf, host"] == 1024


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--mmproj /no/such.gguf", "--mmproj /no/such.gguf: its projector is no file here"),
        ("--lora /no/a.gguf", "--lora /no/a.gguf: its adapter is no file here"),
        ("-md /no/d.gguf", "--spec-draft-model /no/d.gguf: neither a file here nor a known name"),
    ],
)
def test_what_cannot_be_read_is_named(words: str, said: str) -> None:
    command = read_command(f"llama-server -m m.gguf -c 4096 {words}", gpu="RTX-4090")
    plan = kvproof.plan(kvproof.load_model(TARGET), command.deployment, contexts=[4096])
    assert any(warning.startswith(said) for warning in plan.warnings)
    assert any("not computed" in warning for warning in plan.warnings)


def test_no_file_that_a_log_names_is_looked_at() -> None:
    from kvproof.observe.flags import spoken_flags

    _, flags = spoken_flags("llamacpp", "-m m.gguf -c 4096 --mmproj /etc/passwd -md /etc/passwd")
    assert flags == {"ctx_size": 4096}
