"""Formats that users hold: folders, MLX, params.json, adapters, Ollama's store, the hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, safetensors, write
from msgspec import structs

import kvproof
from kvproof.engine.command import read_command
from kvproof.errors import ModelError
from kvproof.model.adapter import lora_elements, read_adapter
from kvproof.model.formats import read_path
from kvproof.model.ollama_store import read_ollama
from kvproof.model.weights import weight_bytes

LLAMA_3_8B = {"dim": 4096, "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "n_heads": 32,
              "n_kv_heads": 8, "n_layers": 32, "norm_eps": 1e-5, "vocab_size": 128256,
              "rope_theta": 500000.0}  # fmt: skip
LLAMA_2_7B = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-6,
              "vocab_size": -1}  # fmt: skip
MIXTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32,
           "n_kv_heads": 8, "norm_eps": 1e-5, "vocab_size": 32000,
           "moe": {"num_experts_per_tok": 2, "num_experts": 8}}  # fmt: skip


def save(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(("params", "parameters", "kv_heads"), [
    (LLAMA_3_8B, 8_030_261_248, 8), (LLAMA_2_7B, 6_738_415_616, 32), (MIXTRAL, 46_702_792_704, 8),
])  # fmt: skip
def test_params_json_of_both_kinds(
    params: dict[str, Any], parameters: int, kv_heads: int, tmp_path: Path
) -> None:
    save(tmp_path, "params.json", params)
    for source in (tmp_path, tmp_path / "params.json"):
        model = kvproof.load_model(source)
        assert model.parameters == parameters
        assert {slot.kv_heads for slot in model.slots} == {kv_heads}


def test_params_json_with_latent_attention(tmp_path: Path) -> None:
    moe = {
        "num_experts": 128,
        "num_experts_per_tok": 4,
        "expert_hidden_dim": 4096,
        "num_shared_experts": 1,
        "first_k_dense_replace": 3,
    }
    sizes = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    sizes |= {"qk_nope_head_dim": 128, "v_head_dim": 128, "n_heads": 128, "n_kv_heads": 128}
    save(tmp_path, "params.json", {"dim": 7168, "n_layers": 61, "hidden_dim": 16384, "moe": moe,
                                   "vocab_size": 131072, **sizes})  # fmt: skip
    model = kvproof.load_model(tmp_path)
    assert kvproof.cache(model, tokens=10, engine="formula", dtype="bf16").bytes == 61 * 10 * 1152
    assert 6.5e11 < model.parameters < 7e11


@pytest.mark.parametrize("change", [{"dim": "wide"}, {"n_heads": 0}, {"n_layers": True},
                                    {"ffn_dim_multiplier": "x"}])  # fmt: skip
def test_broken_params_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    save(tmp_path, "params.json", LLAMA_3_8B | change)
    with pytest.raises(ModelError, match=next(iter(change))):
        kvproof.load_model(tmp_path)


def test_a_folder_a_config_and_its_weights_are_one_model(tmp_path: Path) -> None:
    save(tmp_path, "config.json", CONFIG)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(safetensors({"a": ("BF16", [10, 10])}))
    models = [kvproof.load_model(source) for source in (tmp_path, weights, str(tmp_path))]
    assert {model.stored_weight_bytes for model in models} == {200}
    assert kvproof.load_model(tmp_path / "config.json").slots == models[0].slots


def test_an_mlx_folder_is_read_with_its_groups(tmp_path: Path) -> None:
    eight_bits = {"group_size": 64, "bits": 8}
    section = {"group_size": 64, "bits": 4, "model.layers.0.mlp.down_proj": eight_bits,
               "model.layers.1.mlp.down_proj": False}  # fmt: skip
    save(
        tmp_path, "config.json", CONFIG | {"quantization": section, "quantization_config": section}
    )
    model = kvproof.load_model(tmp_path)
    plain = kvproof.load_model(CONFIG)
    assert model.quantization is not None
    assert model.quantization.method == "mlx"
    assert model.slots == plain.slots
    assert weight_bytes(model) < weight_bytes(plain)
    scheme = model.quantization.scheme("model.layers.0.self_attn.q_proj")
    assert scheme is not None
    assert scheme.bytes(64, 64) == 64 * 64 // 2 + 64 * 4
    assert model.quantization.scheme("model.layers.1.mlp.down_proj") is None
    eight = model.quantization.scheme("model.layers.0.mlp.down_proj")
    assert eight is not None
    assert eight.bits == 8
    save(tmp_path, "config.json", CONFIG | {"quantization": {"bits": 17}})
    with pytest.raises(ModelError, match="MLX"):
        kvproof.load_model(tmp_path)


def test_an_adapter_adds_its_bytes(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    save(base, "config.json", CONFIG)
    row = {"base_model_name_or_path": str(base), "r": 8, "target_modules": ["q_proj", "v_proj"]}
    save(folder, "adapter_config.json", row)
    model = kvproof.load_model(folder)
    assert model.slots == kvproof.load_model(CONFIG).slots
    elements = 2 * 8 * ((64 + 64) + (32 + 64))
    assert lora_elements(model, 8, ("q_proj", "v_proj")) == elements
    assert f"{2 * elements:,} B more" in model.notes[-1]
    (folder / "adapter_model.safetensors").write_bytes(safetensors({"a": ("F32", [4, 4])}))
    adapter = read_adapter(folder)
    assert (adapter.stored_bytes, adapter.elements, adapter.rank) == (64, 16, 8)
    save(folder, "adapter_config.json", row | {"base_model_name_or_path": "org/else"})
    with pytest.raises(ModelError, match="org/else"):
        kvproof.load_model(folder)
    save(folder, "adapter_config.json", row | {"r": "big"})
    with pytest.raises(ModelError, match="r is 'big'"):
        kvproof.load_model(folder)


def ollama_store(tmp_path: Path) -> tuple[Path, Path]:
    """A store that holds one model, and the manifest's path."""
    store = tmp_path / "models"
    (store / "blobs").mkdir(parents=True)
    layers = []
    for kind, raw in (
        ("application/vnd.ollama.image.model", write(tmp_path / "m.gguf").read_bytes()),
        ("application/vnd.ollama.image.params", b'{"num_ctx": 16384, "stop": ["x"]}'),
        ("application/vnd.ollama.image.license", b"a licence"),
    ):
        digest = hashlib.sha256(raw).hexdigest()
        (store / "blobs" / f"sha256-{digest}").write_bytes(raw)
        layers.append({"mediaType": kind, "digest": f"sha256:{digest}", "size": len(raw)})
    folder = store / "manifests" / "registry.ollama.ai" / "library" / "tiny"
    return store, save(folder, "1b", {"schemaVersion": 2, "layers": layers})


def test_an_ollama_model_is_its_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, manifest = ollama_store(tmp_path)
    model = read_ollama("tiny:1b", store=store)
    assert model.name == "tiny:1b"
    assert model.slots == read_path(tmp_path / "m.gguf").slots
    assert any("num_ctx to 16384" in note for note in model.notes)
    assert kvproof.load_model(manifest).slots == model.slots
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    assert read_ollama("registry.ollama.ai/library/tiny:1b") == model
    for name in ("none", "tiny:2b"):
        with pytest.raises(ModelError, match="ollama pull"):
            read_ollama(name)
    with pytest.raises(ModelError, match="no Ollama model name"):
        read_ollama("../../etc:x")
    blob = next(p for p in (store / "blobs").iterdir() if p.stat().st_size > 10_000)
    blob.unlink()
    with pytest.raises(ModelError, match="can't open"):
        read_ollama("tiny:1b")


def test_what_the_author_set_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = ollama_store(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    model = kvproof.load_model("ollama:tiny:1b")
    assert model.settings == {"num_ctx": 16384}

    def tokens(**flags: Any) -> int:
        long = structs.replace(model, context=131072)
        deployment = kvproof.Deployment("ollama", gpu="L40S", **flags)
        return kvproof.capacity(long, deployment, 2**40).max_model_len

    assert tokens() == 16384
    assert tokens(context_length=8192) == 16384  # the server's default loses to the model's own
    assert tokens(num_ctx=4096) == 4096  # a request's wins
    read = read_command("OLLAMA_CONTEXT_LENGTH=8192 ollama run tiny:1b")
    assert kvproof.load_model(str(read.model)).slots == model.slots
    elsewhere = read_command(f"OLLAMA_MODELS={store} ollama run tiny:1b")
    monkeypatch.delenv("OLLAMA_MODELS")
    assert kvproof.load_model(str(elsewhere.model)).slots == model.slots


def test_a_modelfile(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    path = tmp_path / "Modelfile"
    path.write_text(
        '# mine\n\nFROM ./m.gguf\nTEMPLATE """\nPARAMETER num_ctx 1\n"""\n'
        'parameter num_ctx 256\nPARAMETER stop "x"\nPARAMETER num_gpu 1\n'
    )
    model = kvproof.load_model(path)
    assert model.slots == read_path(tmp_path / "m.gguf").slots
    assert model.settings == {"num_ctx": "256", "num_gpu": "1"}
    deployment = kvproof.Deployment("ollama", gpu="L40S")
    assert kvproof.capacity(model, deployment, 2**40).max_model_len == 256
    path.write_text("SYSTEM nothing\n")
    with pytest.raises(ModelError, match="no FROM"):
        kvproof.load_model(path)


def test_folders_of_gguf_files(tmp_path: Path) -> None:
    write(tmp_path / "model-q8.gguf")
    write(tmp_path / "mmproj-f16.gguf")
    assert kvproof.load_model(tmp_path).layers == 2
    write(tmp_path / "model-q4.gguf")
    with pytest.raises(ModelError, match="2 GGUF models"):
        kvproof.load_model(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'"x"', b"null"])
def test_files_that_are_no_model(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(ModelError) as caught:
        kvproof.load_model(tmp_path / "config.json")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="does not exist"):
        read_path(tmp_path / "absent.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="holds no"):
        read_path(tmp_path / "empty")


def test_params_without_a_context_say_what_is_assumed(tmp_path: Path) -> None:
    params = {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 100}
    (tmp_path / "params.json").write_text(json.dumps(params))
    model = kvproof.load_model(tmp_path)
    assert model.context == 131_072
    assert any("131,072" in note for note in model.notes)
    (tmp_path / "params.json").write_text(json.dumps({**params, "max_seq_len": 4096}))
    assert not any("context" in note for note in kvproof.load_model(tmp_path).notes)


@pytest.mark.parametrize(
    "sidecar", [{}, {"quantization": None}, {"quantization": "FP8"},
                {"quantization": {"kv_cache_quant_algo": "FP8"}},
                {"quantization": {"quant_algo": "FP9"}}],
)  # fmt: skip
def test_a_sidecar_that_names_no_quantization(sidecar: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(sidecar))
    with pytest.raises(ModelError, match="quant_algo"):
        kvproof.load_model(tmp_path)
