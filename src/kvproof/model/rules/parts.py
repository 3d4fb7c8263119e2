"""Computed fields that shape parameters only, of text, vision and audio parts.

Looked up like the other rules and applied after them; wrappers.py has those of composite models.
"""

from __future__ import annotations

from math import floor, log2, prod
from typing import Any

from kvproof.model.rules import Config, Rule


def chain(*rules: Rule) -> Rule:
    """The rules one after the other."""

    def rule(c: Config) -> None:
        for each in rules:
            each(c)

    return rule


def default(**values: Any) -> Rule:
    """Fields that a class sets when they are missing."""

    def rule(c: Config) -> None:
        for key, value in values.items():
            if c.get(key) is None:
                c[key] = value

    return rule


def _same(key: str, other: str) -> Rule:
    """The field `key` when missing or zero is the field `other`."""

    def rule(c: Config) -> None:
        c[key] = c.get(key) or c[other]

    return rule


def _renamed(**names: str) -> Rule:
    """Older names win: `field=old name`."""

    def rule(c: Config) -> None:
        for key, old in names.items():
            if c.get(old) is not None:
                c[key] = c[old]

    return rule


def _sam(c: Config) -> None:
    if c.get("mlp_dim") is None:
        c["mlp_dim"] = int(c["hidden_size"] * c["mlp_ratio"])
    c["scale"] = c["hidden_size"] // 2


def _windowed(c: Config) -> None:
    area = c["window_kernel_size"][0] * c["window_kernel_size"][1]
    c["window_hidden_size"] = c["hidden_size"] * area
    c["window_intermediate_size"] = c["intermediate_size"] * area


def _muse_vision(c: Config) -> None:
    n = c["num_hidden_layers"]
    if c.get("layer_types") is None:
        full = {i for i in range(n) if (i + 1) % 4 == 0 or i == n - 1}
        c["layer_types"] = ["full_attention" if i in full else "window_attention" for i in range(n)]


def _lfm3_vision(c: Config) -> None:
    if c.get("layer_types") is None:
        n = c["num_hidden_layers"]
        c["layer_types"] = ["conv" if i < 2 or i % 2 else "full_attention" for i in range(n)]


def _all_full(c: Config) -> None:
    if c.get("layer_types") is None:
        c["layer_types"] = ["full_attention"] * c["num_hidden_layers"]


def _dots_vision(c: Config) -> None:
    counts = c.get("pyramid_num_routed")
    if counts is None and c.get("mlp_layer_types") is None:
        counts = [-1] * 25 + list(range(4, 65, 4)) + [64]
    chosen = c.get("num_experts_per_tok") or c.get("capacity_factor", 2)
    c["num_experts_per_tok"] = chosen
    _renamed(hidden_size="embed_dim", num_attention_heads="num_heads")(c)
    if counts is None:
        return
    c["mlp_layer_types"] = ["sparse" if count > 0 else "dense" for count in counts]
    if c.get("per_layer_config") is None:
        c["per_layer_config"] = {
            i: {"num_local_experts": count, "num_experts_per_tok": min(chosen, count)}
            for i, count in enumerate(counts) if count > 0
        }  # fmt: skip


def _dots_audio(c: Config) -> None:
    _renamed(
        adapter_input_size="whisper_adapter_in_dim", adapter_out_dim="whisper_adapter_out_dim"
    )(c)
    inner = c.get("whisper_config") or {}
    names = {
        "d_model": "hidden_size", "encoder_attention_heads": "num_attention_heads",
        "encoder_layers": "num_hidden_layers", "encoder_ffn_dim": "intermediate_size",
        "num_mel_bins": "feature_size", "max_source_positions": "max_position_embeddings",
    }  # fmt: skip
    c.update({new: inner[old] for old, new in names.items() if old in inner})
    c["head_dim"] = c["hidden_size"] // c["num_attention_heads"]
    c["num_key_value_heads"] = c["num_attention_heads"]
    c["conv_output_size"] = c["downsample_hidden_size"] * ((c["feature_size"] + 7) // 8)


def _step_vision(c: Config) -> None:
    _renamed(hidden_size="width", num_hidden_layers="layers", num_attention_heads="heads")(c)
    c["intermediate_size"] = int(c["hidden_size"] * c["mlp_ratio"])


def _phi4_audio(c: Config) -> None:
    size = c["input_size"]
    for _ in range(int(log2(c["time_reduction"]))):
        size = floor((size - 1) / 2 + 1)
    c["nemo_final_size"] = size


def _molmo_vision(c: Config) -> None:
    _renamed(
        image_size="imagedefault_input_size", patch_size="image_patch_size",
        num_position_embeddings="image_num_pos",
    )(c)  # fmt: skip
    if c.get("image_size") is None:
        c["image_size"] = [378, 378]
    if c.get("num_position_embeddings") is None:
        high, wide = c["image_size"]
        c["num_position_embeddings"] = high // c["patch_size"] * (wide // c["patch_size"])


def _radio(c: Config) -> None:
    c["patch_dim"] = c["num_channels"] * c["patch_size"] ** 2
    if c.get("video_temporal_patch_size") is not None:
        c["video_patch_dim"] = c["video_temporal_patch_size"] * c["patch_dim"]
    c["num_summary_tokens"] = c["num_cls_tokens"] + c["num_registers"]


def _blt(c: Config) -> None:
    if not c.get("encoder_hash_byte_group_size"):
        c["encoder_hash_byte_group_size"] = [3, 4, 5, 6, 7, 8]
    width = c["encoder_config"]["hidden_size"] * c["cross_attn_k"]
    whole = c["global_config"]
    whole["encoder_cross_output_size"] = None if width == whole["hidden_size"] else width


def _blt_part(c: Config) -> None:
    c["num_key_value_heads"] = c.get("num_key_value_heads") or c["num_attention_heads"]
    c["intermediate_size"] = c.get("intermediate_size") or int(8 * c["hidden_size"] / 3)
    c["tie_word_embeddings"] = False


def _minimax_m3(c: Config) -> None:
    c["hidden_act"] = "silu"
    freq = c.get("moe_layer_freq")
    if isinstance(freq, list):
        c["mlp_layer_types"] = ["sparse" if f else "dense" for f in freq]


def _inkling_text(c: Config) -> None:
    if c.get("mlp_layer_types") is None:
        dense, n = c.get("dense_mlp_idx", 0), c["num_hidden_layers"]
        c["mlp_layer_types"] = ["dense" if i < dense else "sparse" for i in range(n)]
    if c.get("dense_intermediate_size") is not None:
        c["moe_intermediate_size"] = c["intermediate_size"]
        c["intermediate_size"] = c["dense_intermediate_size"]
    c["number_of_conv_states"] = 4


def _ernie_moe(c: Config) -> None:
    if c["moe_layer_end_index"] == -1:
        c["moe_layer_end_index"] = c["num_hidden_layers"] - 1


def _falcon(c: Config) -> None:
    if c.get("ffn_hidden_size") is None:
        c["ffn_hidden_size"] = 4 * c["hidden_size"]


def _rwkv(c: Config) -> None:
    if c.get("intermediate_size") is None:
        c["intermediate_size"] = 4 * c["hidden_size"]


def _heads_as_kv(c: Config) -> None:
    c["num_key_value_heads"] = c["num_attention_heads"]


def _umt5(c: Config) -> None:
    if c["feed_forward_proj"] == "gated-gelu":
        c["dense_act_fn"] = "gelu_new"


def _aria(c: Config) -> None:
    default(projector_patch_to_query_dict={"1225": 128, "4900": 256})(c)
    counts = c["projector_patch_to_query_dict"].values()
    c["max_value_projector_patch_to_query_dict"] = max(counts)


def _jamba(c: Config) -> None:
    period, offset, n = c["expert_layer_period"], c["expert_layer_offset"], c["num_hidden_layers"]
    c["layers_num_experts"] = [c["num_experts"] if i % period == offset else 1 for i in range(n)]
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    c["layers_block_type"] = [names[kind] for kind in c["layer_types"]]


def _block_types(c: Config) -> None:
    c["layers_block_type"] = c["layer_types"]


def _copies_of_self(*keys: str) -> Rule:
    """Sections that are the config itself read as another class."""

    def rule(c: Config) -> None:
        own = {k: v for k, v in c.items() if k not in keys}
        c.update({key: dict(own) for key in keys})

    return rule


_NO_DENSE = default(mlp_only_layers=[])

PARTS: dict[str, Rule] = {
    **dict.fromkeys(("minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"), _windowed),
    **dict.fromkeys(("muse_glimmer_vision", "muse_spark_vision"), _muse_vision),
    **dict.fromkeys(
        (
            "qwen2_moe",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl_moe_text",
            "qwen3_omni_moe_text",
            "qwen3_omni_moe_talker_text",
        ),
        _NO_DENSE,
    ),
    **dict.fromkeys(("deit", "vit", "ijepa", "vivit"), _same("pooler_output_size", "hidden_size")),
    **dict.fromkeys(("longt5", "mt5", "t5", "umt5"), _umt5),
    **dict.fromkeys(
        ("blt_local_encoder", "blt_local_decoder", "blt_global_transformer", "blt_patcher"),
        _blt_part,
    ),
    **dict.fromkeys(
        ("lasr_encoder", "nemotron_asr_streaming_encoder", "parakeet_encoder"), _heads_as_kv
    ),
    **dict.fromkeys(
        ("granite_speech_encoder", "granite_speech_plus_encoder"),
        lambda c: c.update(dim_head=c.get("dim_head") or c["hidden_dim"] // c["num_heads"]),
    ),
    "apertus1p5_vision_tokenizer": lambda c: c.update(
        spatial_scale_factor=2 ** (len(c["channel_multiplier"]) - 1)
    ),
    "aria": _aria,
    "blt": _blt,
    "deepseek_ocr2_encoder": chain(lambda c: c.update(sliding_window=None), _all_full),
    "deepseek_ocr2_sam_vision_model": chain(_sam, default(downsample_channels=[512, 896])),
    "dia": default(delay_pattern=[0, 8, 9, 10, 11, 12, 13, 14, 15]),
    "dots3_note_audio_encoder": _dots_audio,
    "dots3_note_vision_encoder": _dots_vision,
    "encodec": _same("codebook_dim", "hidden_size"),
    "ernie4_5_moe": _ernie_moe,
    "ernie4_5_vl_moe_text": default(moe_intermediate_size=[1536, 512]),
    "falcon": _falcon,
    "bamba": _block_types,
    "falcon_h1": chain(
        _block_types, default(mlp_multipliers=[1.0, 1.0], ssm_multipliers=[1.0] * 5)
    ),
    "flint": default(mlp_only_layers=[0, 1]),
    "fun_asr_nano_encoder": lambda c: c.update(
        input_size=c["num_mel_bins"] * c["num_stacked_frames"]
    ),
    "granite_docling_vision": default(deepstack_visual_indexes=[3, 7, 10]),
    "inkling2_vision": lambda c: c.update(
        intermediate_size=c.get("intermediate_size") or int(c["hidden_size"] * c["mlp_ratio"])
    ),
    "inkling_text": _inkling_text,
    "jamba": _jamba,
    "laguna": lambda c: c.update(
        num_attention_heads_per_layer=c.get("num_attention_heads_per_layer")
        or [c["num_attention_heads"]] * c["num_hidden_layers"]
    ),
    "lfm3_vl_vision": _lfm3_vision,
    "marian": _same("decoder_vocab_size", "vocab_size"),
    "mimi": chain(default(upsampling_ratios=[8, 6, 5, 4]), _same("codebook_dim", "hidden_size")),
    "minimax_m3_vl_text": _minimax_m3,
    "mllama_text_model": default(cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38]),
    "mllama_vision_model": chain(
        default(
            supported_aspect_ratios=[
                [1, 1],
                [1, 2],
                [1, 3],
                [1, 4],
                [2, 1],
                [2, 2],
                [3, 1],
                [4, 1],
            ],
            intermediate_layers_indices=[3, 7, 15, 23, 30],
        ),
        lambda c: c.update(max_aspect_ratio_id=len(c["supported_aspect_ratios"])),
    ),
    "molmo2_adapter": default(vision_feature_layer=[24, 18]),
    "molmo2_vision": _molmo_vision,
    "muse_spark_audio": lambda c: c.update(samples_per_token=prod(c["patch_sizes"])),
    "nemotron_h": default(mtp_layers_block_type=["full_attention", "moe"]),
    "phi4_multimodal_audio": _phi4_audio,
    "pixtral": lambda c: c.update(head_dim=c["hidden_size"] // c["num_attention_heads"]),
    "pop2piano": lambda c: c.update(dense_act_fn=c.get("dense_act_fn") or "relu"),
    "prophetnet": lambda c: c.update(num_hidden_layers=c["num_encoder_layers"]),
    "radio": _radio,
    "recurrent_gemma": _block_types,
    "roformer": _same("embedding_size", "hidden_size"),
    "rwkv": _rwkv,
    "sam_hq_vision_model": _sam,
    "sam_vision_model": _sam,
    "speecht5": lambda c: c.update(num_feat_extract_layers=len(c["conv_dim"])),
    "step3p5_vision": _step_vision,
    "udop": chain(
        _umt5, default(relative_bias_args=[{"type": t} for t in ("1d", "horizontal", "vertical")])
    ),
    "vibevoice_acoustic_tokenizer": _copies_of_self("encoder_config", "decoder_config"),
    "wav2vec2": chain(
        _same("output_hidden_size", "hidden_size"),
        lambda c: c.update(num_feat_extract_layers=len(c["conv_dim"])),
    ),
}
