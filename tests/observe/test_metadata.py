"""A model described by the metadata that llama.cpp's loader prints."""

from __future__ import annotations

import kvproof

QWEN = {
    "general.architecture": ("str", "qwen3"), "general.name": ("str", "Qwen3 14B"),
    "qwen3.block_count": ("u32", 40), "qwen3.context_length": ("u32", 32768),
    "qwen3.embedding_length": ("u32", 5120), "qwen3.feed_forward_length": ("u32", 17408),
    "qwen3.attention.head_count": ("u32", 40), "qwen3.attention.head_count_kv": ("u32", 8),
    "qwen3.attention.key_length": ("u32", 128), "qwen3.attention.value_length": ("u32", 128),
    "qwen3.attention.layer_norm_rms_epsilon": ("f32", "0.000001"),
    "tokenizer.ggml.tokens": ("arr[str,151936]", '["!", "#", "$", "%...'),
    "tokenizer.ggml.add_bos_token": ("bool", "false"),
}  # fmt: skip
START = """load_tensors: offloaded 41/41 layers to GPU
llama_context: n_seq_max     = 1
llama_context: n_ctx         = 4096
llama_context: n_batch       = 2048
llama_context: n_ubatch      = 512
llama_context: flash_attn    = 0
llama_kv_cache_unified:      CUDA0 KV buffer size =   640.00 MiB
llama_kv_cache_unified: size =  640.00 MiB (  4096 cells,  40 layers,  1 seqs), K (f16):  320.00 \
MiB, V (f16):  320.00 MiB
"""
BUILD = "0.00.000.334 I build: 5898 (cbc68be5) with cc for x86_64-linux-gnu\n"


def printed(keys: dict[str, tuple[str, object]], stamp: str = "0.00.298.121 I ") -> str:
    return "".join(
        f"{stamp}llama_model_loader: - kv {number:3d}: {key:>42s} {kind:<16s} = {value}\n"
        for number, (key, (kind, value)) in enumerate(keys.items())
    )


def test_the_model_is_what_the_log_describes() -> None:
    report = kvproof.check(BUILD + printed(QWEN) + START)
    (row,) = (row for row in report.rows if row.name == "base cache")
    assert (row.predicted, row.ok) == (640 * 2**20, True)
    model = kvproof.load_model({key: value for key, (_, value) in QWEN.items()
                                if key.startswith(("qwen3.", "general.arch"))})  # fmt: skip
    assert report.warnings == ()
    assert model.layers == 40


def test_a_given_model_goes_before_it() -> None:
    report = kvproof.check(BUILD + printed(QWEN) + START, model="Qwen/Qwen3-8B")
    assert report.model == "Qwen/Qwen3-8B"


def test_the_draft_that_is_loaded_behind_it_is_no_model_of_the_log() -> None:
    draft = {**QWEN, "qwen3.block_count": ("u32", 28), "qwen3.embedding_length": ("u32", 1024)}
    log = kvproof.read_log(BUILD + printed(QWEN) + printed(draft) + START)
    assert log.metadata is not None
    assert log.metadata["qwen3.block_count"] == 40
    assert log.metadata["qwen3.vocab_size"] == 151_936


def test_a_list_that_is_cut_describes_nothing() -> None:
    """Values are printed up to 40 characters: heads of many layers are not known then."""
    cut = {**QWEN, "qwen3.attention.head_count_kv": ("arr[i32,40]", "[8, 8, 8, 8, 8, 8, 8, 8, ...")}
    assert kvproof.read_log(BUILD + printed(cut) + START).metadata is None
    whole = {**QWEN, "qwen3.rope.dimension_sections": ("arr[i32,4]", "[11, 11, 10, 0]")}
    found = kvproof.read_log(BUILD + printed(whole) + START).metadata
    assert found is not None
    assert found["qwen3.rope.dimension_sections"] == [11, 11, 10, 0]


def test_metadata_that_are_not_whole_or_not_known_leave_the_name() -> None:
    rest = {key: value for key, value in QWEN.items() if key != "qwen3.block_count"}
    assert kvproof.read_log(BUILD + printed(rest) + START).metadata is None
    other = {key.replace("qwen3", "nosuch"): value for key, value in QWEN.items()}
    other["general.architecture"] = ("str", "nosuch")
    report = kvproof.check(BUILD + printed(other) + START)
    assert report.rows == ()
    assert "no model is named" in " ".join(report.warnings)
