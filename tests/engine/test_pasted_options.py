"""Options as people paste them: short negations, a release without them, settings in files."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvproof
from kvproof.engine.base import Deployment
from kvproof.engine.command import read_command, read_flags, render_command
from kvproof.engine.manifest import read_manifest
from kvproof.engine.sglang.flags import is_read as sglang_reads
from kvproof.engine.sglang.flags import known_flags as sglang_flags
from kvproof.engine.sglang.uncomputed import UNCOMPUTED as SGLANG_LEFT_OUT
from kvproof.engine.tensorrt_llm.flags import read_flags as read_trt
from kvproof.engine.vllm.flags import flag_type as vllm_type
from kvproof.engine.vllm.flags import known_flags as vllm_flags
from kvproof.engine.vllm.flags import read_flags as read_vllm
from kvproof.engine.vllm.uncomputed import UNCOMPUTED as VLLM_LEFT_OUT
from kvproof.errors import UsageError


@pytest.mark.parametrize("word", ["-nkvo", "--no-kv-offload"])
def test_a_short_negation_switches_off(word: str) -> None:
    read = read_command(f"llama-server -m x.gguf -c 4096 {word}")
    assert read.deployment.flags["kv_offload"] is False
    assert "--no-kv-offload" in render_command("x.gguf", read.deployment)


def test_an_unknown_llama_server_option_offers_options_as_they_are_typed() -> None:
    with pytest.raises(UsageError, match="did you mean --ctx-size"):
        read_command("llama-server -m x.gguf --ctxsize 4096")


_NEWER = "meta-llama/Llama-3.1-8B --async-scheduling --watchdog-config {}"
_MANIFEST = """
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.6.4
    args: [--model, meta-llama/Llama-3.1-8B, --async-scheduling]
"""


@pytest.mark.parametrize(
    ("release", "said"),
    [("0.6.0", r"async-scheduling \(from 0.10.0 on\), --watchdog-config \(from 0.33.0 on\)"),
     ("0.9.2", r"0.9.2 has no --async-scheduling"),
     ("0.10.0", r"0.10.0 has no --watchdog-config \(from 0.33.0 on\)")],
)  # fmt: skip
def test_options_that_a_release_has_not_yet_are_refused(release: str, said: str) -> None:
    engine = f"vllm@{release}"
    with pytest.raises(UsageError, match=said):
        read_command(f"vllm serve {_NEWER}", engine=engine)
    with pytest.raises(UsageError, match=said):
        read_flags(engine, _NEWER.split()[1:])


def test_options_of_the_release_are_taken() -> None:
    for engine in ("vllm@0.33.0", "vllm", "vllm@0.32.1.dev3", None):
        read_command(f"vllm serve {_NEWER}", engine=engine)
    assert read_flags("vllm@0.10.0", ["--async-scheduling"]).deployment.flags["async_scheduling"]


def test_a_release_between_two_that_were_read_may_have_an_option() -> None:
    """--all2all-backend is not in 0.11.0 and is in 0.11.1; data_parallel_size 0.8.1 and 0.8.4."""
    read_flags("vllm@0.8.3", ["--data-parallel-size=2"])
    with pytest.raises(UsageError, match="data-parallel-size"):
        read_flags("vllm@0.8.1", ["--data-parallel-size=2"])


def test_the_images_release_counts_unless_another_is_named() -> None:
    with pytest.raises(UsageError, match=r"0.6.4 has no --async-scheduling"):
        read_manifest(_MANIFEST)
    assert read_manifest(_MANIFEST, engine="vllm@0.11.0").deployment.flags["async_scheduling"]


@pytest.mark.parametrize(
    ("release", "written"), [("0.8.4", "image=0,video=0"), ("0.8.5", '\'{"image":0,"video":0}\'')]
)
def test_limits_of_pictures_are_printed_as_the_release_reads_them(
    release: str, written: str
) -> None:
    read = read_command(
        "vllm serve a/b --limit-mm-per-prompt image=0,video=0", engine=f"vllm@{release}"
    )
    printed = render_command("a/b", read.deployment)
    assert f"--limit-mm-per-prompt {written}" in printed
    again = read_command(printed, engine=f"vllm@{release}")
    assert read_vllm(again.deployment) == read_vllm(read.deployment)


_FORMS = {
    "server, then model": "OLLAMA_CONTEXT_LENGTH=8192 ollama serve &\nsleep 2\nollama run qwen3:8b",
    "exported": "export OLLAMA_CONTEXT_LENGTH=8192; ollama serve & ollama run qwen3:8b --verbose",
    "containers": (
        "docker run -d -e OLLAMA_CONTEXT_LENGTH=8192 --name o ollama/ollama:0.12.3\n"
        "docker exec -it o ollama run qwen3:8b"
    ),
    "created": (
        "cat > Modelfile <<EOF\nFROM qwen3:8b\nPARAMETER num_ctx 8192\nPARAMETER stop x\nEOF\n"
        "ollama create mine -f Modelfile && ollama run mine"
    ),
    "a Modelfile": "FROM qwen3:8b\nPARAMETER temperature 1\nPARAMETER num_ctx 8192\n",
    "a request": '{"model": "qwen3:8b", "prompt": "hi", "options": {"num_ctx": 8192}}',
    "curl": (
        "curl http://localhost:11434/api/generate -d "
        """'{"model": "qwen3:8b", "options": {"num_ctx": 8192}}'"""
    ),
}


@pytest.mark.parametrize("form", _FORMS)
def test_ollamas_settings_in_any_form_are_one_start(form: str) -> None:
    read = read_command(_FORMS[form])
    assert read.model == "ollama:qwen3:8b"
    flags = read.deployment.flags
    assert flags.get("num_ctx", flags.get("context_length")) == 8192
    assert not read.notes
    version = "0.12.3" if form == "containers" else None
    assert read.deployment.engine.version == version


@pytest.mark.parametrize(
    "form", ["num_ctx=8192 num_gpu=20", '{"num_ctx": 8192, "num_gpu": 20}',
             "PARAMETER num_ctx 8192\nPARAMETER num_gpu 20",
             "/set parameter num_ctx 8192\n/set parameter num_gpu 20"],
)  # fmt: skip
def test_ollamas_options_alone_name_no_model(form: str) -> None:
    read = read_command(form, engine="ollama@0.12.0")
    assert read.model is None
    assert str(read.deployment.engine) == "ollama@0.12.0"
    assert read.deployment.flags == {"num_ctx": 8192, "num_gpu": 20}


def test_a_modelfile_that_lies_here_is_read(tmp_path: Path) -> None:
    file = tmp_path / "Modelfile"
    file.write_text("FROM ./x.gguf\nPARAMETER num_ctx 4096\n")
    for text in (str(file), f"ollama create mine -f {file}; ollama run mine"):
        read = read_command(text)
        assert (read.model, read.deployment.flags["num_ctx"]) == ("./x.gguf", 4096)
    with pytest.raises(UsageError, match="is not here"):
        read_command(f"ollama create mine -f {tmp_path}/none; ollama run mine")


def test_ollamas_unknown_options_are_refused() -> None:
    for text in ("num_ctx=8192 num_ctxt=1", "ollama run x --num-ctxt 8192"):
        with pytest.raises(UsageError, match=r"num.ctxt.*num-ctx"):
            read_command(text)
    with pytest.raises(UsageError, match="options of the request is no object"):
        read_command('{"model": "x", "options": [1]}')


def test_the_servers_variables_before_run_are_said() -> None:
    read = read_command("OLLAMA_NUM_PARALLEL=2 ollama run x")
    assert read.deployment.flags == {"num_parallel": 2}
    assert "read as set for ollama serve" in read.notes[0]


@pytest.mark.parametrize(
    "text", ["\n" * 19_000, "FROM \n" * 1_900, '{"a":' * 3_000, "/set " * 1_900]
)
def test_texts_of_no_engine_are_refused_at_once(text: str) -> None:
    with pytest.raises(UsageError, match="no known engine"):
        read_command(text)


_YAML = """cat > /tmp/x.yaml <<'EOF'
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  tokens_per_block: 64
  max_attention_window: [1024, 4096]
  dtype: fp8
enable_attention_dp: true
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 1
EOF
trtllm-serve a/b --tp_size 4 --extra_llm_api_options /tmp/x.yaml --max_batch_size 8
"""


def test_what_only_a_file_of_options_takes_is_printed_as_one() -> None:
    read = read_command(_YAML)
    printed = render_command("a/b", read.deployment)
    assert printed.splitlines()[-1] == (
        "trtllm-serve a/b --tp_size 4 --max_batch_size 8 --extra_llm_api_options options.yaml"
    )
    assert "  max_attention_window: [1024,4096]" in printed.splitlines()
    again = read_command(printed)
    assert again.deployment.flags == read.deployment.flags
    assert (again.model, again.notes) == ("a/b", ())


def test_settings_of_the_cache_alone_lie_under_its_key() -> None:
    given = Deployment("tensorrt_llm", max_tokens=4096, tokens_per_block=64, tp_size=2)
    again = read_command(render_command("a/b", given)).deployment
    assert again.flags["kv_cache_config"] == {"max_tokens": 4096, "tokens_per_block": 64}
    kept = {k: v for k, v in read_trt(again).given.items() if k != "kv_cache_config"}
    assert kept == read_trt(given).given


@pytest.mark.parametrize("windows", [[1024], [1024, 40_960]])
def test_windows_bound_what_a_sequence_keeps_and_a_step_reads(windows: list[int]) -> None:
    model = kvproof.load_model("Qwen/Qwen3-8B")
    given = Deployment("tensorrt_llm", "H100-80GB", max_attention_window=windows)
    found = kvproof.plan(model, given, contexts=[16_384]).rows[0]
    layers = [windows[layer % len(windows)] for layer in range(36)]
    assert found.bytes_per_sequence == sum(min(16_384, w) * 4_096 for w in layers)
    pool = found.sequences * found.bytes_per_sequence
    assert pool <= kvproof.budget(model, given).kv_bytes


@pytest.mark.parametrize(
    ("command", "gpu", "planned"),
    [
        ("CUDA_VISIBLE_DEVICES=0 llama-server -m x.gguf", "2xRTX-4090-24GB", "1xRTX-4090-24GB"),
        ("llama-server -m x.gguf -dev CUDA1", "RTX-4090-24GB+RTX-3060-12GB", "1xRTX-3060-12GB"),
        ("llama-server -m x.gguf --device none", "2xRTX-4090-24GB", "2xRTX-4090-24GB"),
        ("CUDA_VISIBLE_DEVICES=4,5 vllm serve a/b -tp 2", "8xH200", "2xH200-141GB"),
        ("CUDA_VISIBLE_DEVICES=GPU-1f,GPU-2e vllm serve a/b", "8xH200", "2xH200-141GB"),
        ("CUDA_VISIBLE_DEVICES=8,9 vllm serve a/b -tp 2", "8xH200", "2xH200-141GB"),
        ("CUDA_VISIBLE_DEVICES=3 vllm serve a/b", "H200", "H200-141GB"),
        ("vllm serve a/b --device cuda -tp 2", "2xH200", "2xH200-141GB"),
        ("docker run --gpus 2 vllm/vllm-openai --model a/b -tp 2", "8xH200", "2xH200-141GB"),
        ("docker run --gpus all vllm/vllm-openai --model a/b -tp 2", "8xH200", "8xH200-141GB"),
        ("docker run --gpus '\"device=0,3\"' vllm/vllm-openai --model a/b", "8xH200",
         "2xH200-141GB"),
        ("docker run --gpus all -e CUDA_VISIBLE_DEVICES=1 vllm/vllm-openai --model a/b", "2xL4",
         "1xL4-24GB"),
    ],
)  # fmt: skip
def test_only_the_gpus_that_an_engine_sees_are_planned(
    command: str, gpu: str, planned: str
) -> None:
    read = read_command(command, gpu)
    assert read.deployment.kinds == Deployment(read.deployment.engine.name, planned).kinds
    assert read.deployment.gpu_count == Deployment("vllm", planned).gpu_count
    fewer = Deployment("vllm", gpu).kinds != Deployment("vllm", planned).kinds
    assert any("shows the engine" in note for note in read.notes) is fewer


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("uvx vllm@0.11.0 serve a/b", "vllm@0.11.0"),
        ("pip install vllm==0.8.5.post1\nvllm serve a/b", "vllm@0.8.5.post1"),
        ("uv pip install 'sglang[all]==0.5.3' && python -m sglang.launch_server --model a/b",
         "sglang@0.5.3"),
        ("uv run --with vllm==0.9.2 vllm serve a/b", "vllm@0.9.2"),
        ("pip install tensorrt-llm==1.0.0; trtllm-serve a/b", "tensorrt_llm@1.0.0"),
        ("pip install vllm==0.9.2; docker run vllm/vllm-openai:v0.11.0 --model a/b", "vllm@0.11.0"),
        ("pip install 'vllm>=0.8' torch==2.7; vllm serve a/b", "vllm"),
        ("pip install ollama==0.4.7; ollama run a/b", "ollama"),  # the client
    ],
)  # fmt: skip
def test_a_release_that_the_text_installs_is_the_servers(text: str, engine: str) -> None:
    read = read_command(text)
    assert str(read.deployment.engine) == engine
    assert read.model in ("a/b", "ollama:a/b")
    said = any("the text installs" in note for note in read.notes)
    assert said is ("@" in engine and "docker" not in text)


def test_an_engine_that_is_named_wins_over_what_the_text_installs() -> None:
    read = read_command("pip install vllm==0.9.2; vllm serve a/b", engine="vllm@0.10.0")
    assert (str(read.deployment.engine), read.notes) == ("vllm@0.10.0", ())


@pytest.mark.parametrize(
    "text",
    [
        r".\llama-server.exe -m C:\models\x.gguf -c 8192",
        r'"C:\Program Files\llama-server.exe" -m "C:\models\x.gguf" -c 8192',
        "llama-server.exe -m C:\\models\\x.gguf ^\n  -c 8192",
        "llama-server -m 'C:\\models\\x.gguf' `\n  -c 8192",
    ],
)
def test_a_backslash_parts_folders_on_windows(text: str) -> None:
    read = read_command(text)
    assert read.model == r"C:\models\x.gguf"
    assert read.deployment.flags == {"ctx_size": 8192}


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        ("sglang serve --model-path a/b --torchao-config int4wo-128", "torchao_config"),
        ("sglang serve --model-path a/b --disable-mla", "disable_mla"),
        ("vllm serve a/b --offload-group-size 8", "offload_group_size"),
        ("vllm serve a/b --enable-dbo", "enable_dbo"),
        ("llama-server -m x.gguf --override-kv llama.block_count=int:8", "override_kv"),
        ("llama-server --models-dir ./models", "models_dir"),
    ],
)
def test_what_changes_memory_and_is_not_computed_is_said(command: str, left_out: str) -> None:
    read = read_command(f"{command} --port 80")
    assert read.uncomputed == (left_out,)
    assert read.ignored == ("port",)
    assert [note for note in read.notes if note.endswith("not computed")]


def test_what_is_switched_off_changes_nothing() -> None:
    read = read_command("vllm serve a/b --no-enable-dbo")
    assert (read.uncomputed, read.notes) == ((), ())


def test_every_option_that_is_not_computed_is_one_of_the_engines_and_not_read() -> None:
    for name in VLLM_LEFT_OUT:
        assert name in vllm_flags()
        assert vllm_type(name) is None
    for name in SGLANG_LEFT_OUT:
        assert name in sglang_flags()
        assert not sglang_reads(name)


_UNIT = """[Unit]
Description=model server
[Service]
Environment="CUDA_VISIBLE_DEVICES=1" HF_HOME=/data
Environment=VLLM_USE_V1=0
ExecStart=-/opt/venv/bin/vllm serve a/b \\
    --max-model-len 8192 --port 80
Restart=always
"""


def test_a_unit_of_systemd_is_what_it_starts() -> None:
    read = read_command(_UNIT, "2xL4-24GB")
    assert read.model == "a/b"
    assert read.deployment.flags == {"use_v1": False, "max_model_len": 8192}
    assert read.deployment.gpu_count == 1


def test_ollamas_unit_is_edited_by_variables_alone() -> None:
    read = read_command('[Service]\nEnvironment="OLLAMA_CONTEXT_LENGTH=8192"\n')
    assert (read.model, read.deployment.flags) == (None, {"context_length": 8192})
    with pytest.raises(UsageError, match="no known engine"):
        read_command('[Service]\nEnvironment="HF_HOME=/data"\n')


def test_a_projector_that_a_repository_brings_along_is_said() -> None:
    model = kvproof.load_model("google/gemma-3-4b-it")
    for command, said in (
        ("llama-server -hf org/x:Q4_K_M", True),
        ("llama-server -hf org/x:Q4_K_M --no-mmproj", False),
        ("llama-server -hf org/x:Q4_K_M --no-mmproj-auto", False),
    ):
        read = read_command(command, "RTX-4090-24GB")
        notes = kvproof.plan(model, read.deployment, contexts=[4096]).warnings
        assert any("projector is loaded too" in note for note in notes) is said
        assert not any("False" in note for note in notes)
        again = read_command(render_command("org/x:Q4_K_M", read.deployment))
        assert again.deployment.flags == read.deployment.flags
    text = kvproof.plan(kvproof.load_model("Qwen/Qwen3-8B"), read.deployment, contexts=[4096])
    assert not any("projector" in note for note in text.warnings)


def test_variables_that_ollama_does_not_read_are_said() -> None:
    read = read_command("OLLAMA_NUM_CTX=8192 OLLAMA_NUM_PARALLEL=2 ollama serve")
    assert read.deployment.flags == {"num_parallel": 2}
    assert read.notes == ("Ollama reads no OLLAMA_NUM_CTX: its variable is OLLAMA_CONTEXT_LENGTH",)
