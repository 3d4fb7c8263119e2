"""Pasted command lines: what they start, and the way back."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvproof
from kvproof.engine.command import read_command, render_command
from kvproof.engine.shell import simple_commands
from kvproof.errors import UsageError


def test_vllm_serve() -> None:
    found = read_command(
        "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32K "
        "--enable-prefix-caching --gpu-memory-utilization=0.95 --host 0.0.0.0 --port 8000"
    )
    assert found.model == "Qwen/Qwen3-32B"
    assert found.deployment.engine.name == "vllm"
    assert found.deployment.flags == {
        "tensor_parallel_size": 4,
        "max_model_len": 32768,
        "enable_prefix_caching": True,
        "gpu_memory_utilization": 0.95,
    }
    assert found.ignored == ("host", "port")


def test_module_with_environment_and_continued_lines() -> None:
    found = read_command(
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_ATTENTION_BACKEND=FLASHINFER python3 -m "
        "vllm.entrypoints.openai.api_server \\\n  --model org/name -tp 2 \\\n"
        "  --no-enable-prefix-caching --disable-log-requests --kv-cache-dtype fp8 && echo done"
    )
    assert found.model == "org/name"
    assert found.deployment.flags == {
        "tensor_parallel_size": 2,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
        "variable_attention_backend": "FLASHINFER",
    }


def test_the_image_names_the_release() -> None:
    found = read_command(
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 --model org/name -O3 "
        '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''
    )
    assert str(found.deployment.engine) == "vllm@0.11.0"
    assert found.deployment.flags["speculative_config"]["num_speculative_tokens"] == 2


def test_dotted_options_make_one_object() -> None:
    found = read_command(
        "$ vllm serve --trust-remote-code --enable-auto-tool-choice org/name "
        "--speculative-config.method eagle --speculative-config.num-speculative-tokens 3"
    )
    assert found.model == "org/name"
    assert found.deployment.flags["speculative_config"] == {
        "method": "eagle",
        "num_speculative_tokens": 3,
    }


def test_flags_given_beside_the_command_win() -> None:
    found = read_command("vllm serve org/name --max-model-len 8192", max_model_len=4096)
    assert found.deployment.flags["max_model_len"] == 4096


def test_the_release_given_beside_the_command_runs_it() -> None:
    plain = read_command("vllm serve org/name -tp 2", "2xH100-80GB", engine="vllm@0.8.5")
    assert str(plain.deployment.engine) == "vllm@0.8.5"
    assert plain.deployment.flags["tensor_parallel_size"] == 2
    assert plain.deployment.gpu_count == 2
    image = "docker run vllm/vllm-openai:v0.11.0 --model org/name"
    assert str(read_command(image, engine="vllm").deployment.engine) == "vllm@0.11.0"
    other = read_command(image, engine="vllm@0.10.2")
    assert str(other.deployment.engine) == "vllm@0.10.2"
    assert "not of the command's vllm@0.11.0" in other.notes[-1]


def test_another_engine_than_the_commands_is_refused() -> None:
    with pytest.raises(UsageError, match="starts vllm, not sglang"):
        read_command("vllm serve org/name", engine="sglang@0.5.9")


def test_from_command_is_the_deployment() -> None:
    found = kvproof.Deployment.from_command("vllm serve org/name -tp 2", gpu="2xH100-80GB")
    assert found.flags["tensor_parallel_size"] == 2
    assert found.gpu_count == 2


@pytest.mark.parametrize(
    "text",
    [
        "ls -l",
        "",
        "vllm serve 'x",
        "vllm serve x --tensor-paralel-size 2",
        "vllm serve x --max-model-len abc",
        "vllm serve x --max-model-len",
        "vllm serve " + "x " * 20_000,
    ],
    ids=lambda text: text[:40],
)
def test_what_can_not_be_read_says_so(text: str) -> None:
    with pytest.raises(UsageError):
        read_command(text)


def test_rendered_commands_read_back() -> None:
    deployment = kvproof.Deployment(
        "vllm",
        tensor_parallel_size=4,
        max_model_len=-1,
        enable_prefix_caching=False,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    text = render_command("org/name", deployment)
    assert text.startswith("vllm serve org/name --tensor-parallel-size 4")
    again = read_command(text)
    assert again.model == "org/name"
    assert dict(again.deployment.flags) == dict(deployment.flags)


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert read_command(f"vllm serve org/name {text}").model == "org/name"


def test_short_names_of_parallel_options() -> None:
    text = "vllm serve org/name -dp 8 -dpl 8 -dpa 10.0.0.1 -dpp 13345 -ep --max-model-len 8192"
    flags = read_command(text, "8xH200").deployment.flags
    assert (flags["data_parallel_size"], flags["enable_expert_parallel"]) == (8, True)
    assert flags["max_model_len"] == 8192


@given(st.lists(st.sampled_from(["--port 80", "--enforce-eager", "-tp 2", "--dtype half"])))
def test_words_may_come_in_any_order(parts: list[str]) -> None:
    found = read_command(shlex.join(["vllm", "serve", "org/name", *" ".join(parts).split()]))
    assert found.model == "org/name"


SCRIPT = r"""
#!/bin/bash
export MODEL=Qwen/Qwen3-8B  # what is served; don't change
ARGS="--max-num-seqs 64 --seed 1"
cat << EOF > /tmp/extra.yml
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: false
print_iter_log: true
it's no option: 1
EOF
pip install -q something && echo "starting; now"
"""


def test_a_script_with_variables() -> None:
    found = read_command(
        SCRIPT + 'vllm serve "$MODEL" --max-model-len ${LEN:-8192} $ARGS 2>&1 | tee log\n'
    )
    assert found.model == "Qwen/Qwen3-8B"
    assert found.deployment.flags == {"max_model_len": 8192, "max_num_seqs": 64}


def test_a_here_document_is_the_options_file() -> None:
    found = read_command(SCRIPT + "trtllm-serve $MODEL --extra_llm_api_options /tmp/extra.yml &")
    assert found.deployment.flags["kv_cache_config"] == {
        "free_gpu_memory_fraction": 0.8,
        "enable_block_reuse": False,
    }
    assert "left aside from /tmp/extra.yml: print-iter-log" in found.notes[0].replace("_", "-")


def test_a_configuration_file_beside_the_command(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("max-model-len: 4096\nenable-prefix-caching: false\ntensor-parallel-size: 2\n")
    found = read_command(f"vllm serve org/name --config {path} --max-model-len 8192")
    assert found.deployment.flags == {"max_model_len": 8192, "tensor_parallel_size": 2}
    assert "given twice, as 4096 and as 8192" in found.notes[0]
    absent = read_command("vllm serve org/name --config elsewhere.yaml")
    assert "elsewhere.yaml is not here" in absent.notes[0]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("vllm serve m/n --max-model-len 4096 --max_model_len=8192", "max_model_len", 8192),
        ("vllm serve m/n --enable-prefix-caching --no-enable-prefix-caching",
         "enable_prefix_caching", False),
        ("llama-server -m m.gguf -c 4096 --ctx-size 8192", "ctx_size", 8192),
        ("trtllm-serve m/n --tp_size 2 --tp_size 4", "tp_size", 4),
    ],
)  # fmt: skip
def test_an_option_given_twice_is_said(text: str, name: str, value: object) -> None:
    found = read_command(text)
    assert found.deployment.flags[name] == value
    assert "given twice" in found.notes[0]
    assert "the last counts" in found.notes[0]


def test_the_library_warns_of_it() -> None:
    with pytest.warns(UserWarning, match="given twice"):
        found = kvproof.Deployment.from_command("vllm serve m/n -tp 2 -tp 4")
    assert found.flags["tensor_parallel_size"] == 4


def test_the_same_value_twice_is_no_matter() -> None:
    assert not read_command("vllm serve m/n --max-model-len 4096 --max-model-len 4096").notes


def test_a_container_with_a_shell_of_its_own() -> None:
    found = read_command(
        "docker run --gpus all -e VLLM_ATTENTION_BACKEND=FLASHINFER --env=LEN=4096 "
        "--entrypoint bash vllm/vllm-openai:v0.20.0 -lc "
        "'pip install x; vllm serve org/name --max-model-len 4096'"
    )
    assert str(found.deployment.engine) == "vllm@0.20.0"
    assert found.model == "org/name"
    flags = {"variable_attention_backend": "FLASHINFER", "max_model_len": 4096}
    assert found.deployment.flags == flags


def test_shortened_options_are_completed_as_argparse_does() -> None:
    found = read_command("vllm serve org/name --tensor-parallel 4")
    assert found.deployment.flags == {"tensor_parallel_size": 4}
    assert found.notes == ("--tensor-parallel is read as --tensor-parallel-size",)
    with pytest.raises(UsageError, match="--max-model-len"):
        read_command("vllm serve org/name --max-modle-len 4")


def test_options_that_take_many_words_take_no_model() -> None:
    found = read_command("vllm serve --served-model-name a b --model org/name")
    assert found.model == "org/name"


def test_the_revision_goes_with_the_name() -> None:
    assert read_command("vllm serve org/name --revision abc").model == "org/name@abc"
    assert read_command("python -m sglang.launch_server --model org/name --revision main").model \
        == "org/name"  # fmt: skip


def test_llamacpps_variables_are_options() -> None:
    found = read_command(
        "LLAMA_ARG_CTX_SIZE=8192 LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_HF_REPO=org/x:Q8_0 "
        "LLAMA_ARG_PORT=80 OTHER=1 llama-server"
    )
    assert found.model == "org/x:Q8_0"
    assert found.deployment.flags == {"ctx_size": 8192, "parallel": 2}


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("llama-server -hf org/x:Q4_K_M", "org/x:Q4_K_M"),
        ("llama-server -hf org/x", "org/x:latest"),
        ("llama-server -hf org/x -hff sub/file.gguf", "org/x/sub/file.gguf"),
        ("llama-server -m folder/file.gguf", "folder/file.gguf"),
        ("./build/bin/llama-cli -m file.gguf -p 'hello there'", "file.gguf"),
        ("llama-server -mu https://huggingface.co/o/n/resolve/main/f.gguf",
         "https://huggingface.co/o/n/resolve/main/f.gguf"),
        ("ollama run llama3.2:3b --verbose", "ollama:llama3.2:3b"),
        ("OLLAMA_CONTEXT_LENGTH=8192 ollama serve", None),
        ("docker exec -it ollama ollama run llama3.2", "ollama:llama3.2"),
        ("docker run -d --name ollama ollama/ollama:0.12.1", None),
    ],
)  # fmt: skip
def test_where_the_model_is_named(text: str, model: str | None) -> None:
    assert read_command(text).model == model


def test_one_sequence_outside_the_server() -> None:
    assert read_command("llama-cli -m file.gguf").deployment.flags == {"parallel": 1}


def test_of_several_servers_the_first_is_read_and_said() -> None:
    found = read_command("vllm serve a/b & vllm serve c/d --port 8001")
    assert found.model == "a/b"
    assert "starts 2 servers" in found.notes[0]


@settings(max_examples=200)
@given(st.text(alphabet="ab $\"'\\<>|&;()#\n-=EOF{}:", max_size=200))
def test_any_shell_text_is_split_or_refused(text: str) -> None:
    with suppress(UsageError):
        for command in simple_commands(text):
            assert command.words


def test_kvproofs_own_settings_have_each_engines_names() -> None:
    read = read_command("llama-server -m m.gguf -c 4096", max_model_len=8192, kv_cache_dtype="q8_0")
    assert read.deployment.flags == {
        "ctx_size": 8192, "cache_type_k": "q8_0", "cache_type_v": "q8_0",
    }  # fmt: skip
    assert read_command("ollama run x", max_model_len=8192).deployment.flags == {"num_ctx": 8192}
    with pytest.raises(UsageError, match="no tensor-parallel size"):
        read_command("ollama run x", tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("image", "engine"),
    [
        ("vllm/vllm-openai:v0.20.0", "vllm@0.20.0"),
        ("docker.io/vllm/vllm-openai:v0.19.0-cu130", "vllm@0.19.0"),
        ("vllm/vllm-openai:nightly-abc", "vllm"),
        ("lmcache/vllm-openai:v0.3.5", "vllm"),
    ],
)
def test_releases_of_images(image: str, engine: str) -> None:
    read = read_command(f"docker run {image} --model a/b")
    assert str(read.deployment.engine) == engine


def test_options_that_move_memory_are_followed() -> None:
    found = read_command("llama-server -m m.gguf -ot '.ffn_.*_exps.=CPU' -mmu http://x --mlock")
    assert found.notes == ()
    assert found.deployment.flags == {
        "override_tensor": ".ffn_.*_exps.=CPU", "mmproj_url": "http://x",
    }  # fmt: skip
