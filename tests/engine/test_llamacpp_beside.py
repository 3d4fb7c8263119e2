"""llama.cpp: a draft model, a projector and adapters beside the model."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.command import read_command
from kvproof.engine.llamacpp.builds import build_of
from kvproof.engine.llamacpp.devices import placement
from kvproof.engine.llamacpp.flags import flags_of
from kvproof.engine.llamacpp.overrides import HOST

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


MIXTURE = "Qwen/Qwen3-30B-A3B"


def spread(command: str, gpu: str = "2xH100-80GB") -> dict[str, float]:
    read = read_command(f"llama-server -m m.gguf -c 4096 --fit off {command}", gpu=gpu)
    budget = kvproof.budget(kvproof.load_model(MIXTURE), read.deployment)
    return {term.name: term.value for term in budget.terms}


def test_tensors_go_where_patterns_say() -> None:
    whole, by_count = spread(""), spread("--n-cpu-moe 48")
    by_name = spread(r"-ot '\.ffn_.*_exps\.=CPU'")
    for name in ("weights, GPU 0", "weights, GPU 1", "weights, host", "compute buffer, GPU 0"):
        assert by_name[name] == by_count[name]
    assert by_name["weights, host"] > 10 * whole["weights, host"]
    some = spread(r"-ot 'blk\.(?:[0-9]|1[0-9])\.ffn_up_exps=CPU'")
    up = 128 * 768 * 2048 * 2
    moved = some["weights, host"] - whole["weights, host"]
    assert moved in (0, 20 * up, 20 * 2 * up)  # gate and up are one tensor of the checkpoint


def test_the_first_pattern_that_is_found_decides() -> None:
    first = spread(r"-ot 'blk\.0\.ffn_down_exps=CUDA1,exps=CPU'")
    again = spread(r"-ot 'blk\.0\.ffn_down_exps=CUDA1' -ot exps=CPU")
    last = spread(r"-ot 'exps=CPU,blk\.0\.ffn_down_exps=CUDA1'")
    down = 128 * 2048 * 768 * 2
    assert again == first
    assert first["weights, GPU 1"] - last["weights, GPU 1"] == down
    assert last["weights, host"] - first["weights, host"] == down
    assert spread("-ot 'output=CPU'")["weights, host"] > spread("")["weights, host"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-ot exps", "want PATTERN=BUFFER"),
        ("-ot 'exps=RPC[10.0.0.2:50052]'", "is no buffer that is known here"),
        ("-ot 'exps=CUDA7'", "override_tensor names GPU 7 of 2"),
        ("-ot '(a+)+$=CPU'", "repeats what repeats"),
        ("-ot '(a|aa)*b=CPU'", "repeats what repeats"),
        ("-ot '(=CPU'", "is no regular expression"),
        ("--rpc 10.0.0.2:50052", "machines whose memory is not known here"),
    ],
)
def test_patterns_and_machines_that_can_not_be_followed(words: str, said: str) -> None:
    with pytest.raises(kvproof.KvproofError, match=re.escape(said)):
        spread(words)


def test_batches_of_host_layers_can_stay_on_the_host() -> None:
    with_gpu, without = spread("-ngl 0", "H100-80GB"), spread("-ngl 0 --no-op-offload", "H100-80GB")
    assert with_gpu["compute buffer"] > without["compute buffer"] == 0


def test_a_draft_from_the_hub_is_one_by_name() -> None:
    by_hub = terms(spec_draft_hf=f"{DRAFT}:Q8_0", gpu="RTX-4090")
    assert by_hub == terms(spec_draft_model=DRAFT, gpu="RTX-4090")
    command = read_command("llama-server -m m.gguf -c 4096 -mmu https://h/p.gguf", gpu="RTX-4090")
    plan = kvproof.plan(kvproof.load_model(TARGET), command.deployment, contexts=[4096])
    assert any("--mmproj https://h/p.gguf: its projector" in warning for warning in plan.warnings)


def test_layers_behind_which_the_output_goes_by_build() -> None:
    flags = flags_of(Deployment("llamacpp@b7000", n_gpu_layers=8))
    model = kvproof.load_model(TARGET)
    old, new = (placement(model, msgspec.structs.replace(flags, build=build_of(name)), 1)
                for name in ("b7000", "b8000"))  # fmt: skip
    assert (old.layers.count(0), old.output) == (8, HOST)
    assert (new.layers.count(0), new.output) == (7, 0)
