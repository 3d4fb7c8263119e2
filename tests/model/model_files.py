"""Small model files that tests write: a GGUF file, safetensors bytes, a config."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BITS = {"F32": 32, "BF16": 16, "F8_E4M3": 8, "I64": 64, "BOOL": 8, "F4": 4, "U8": 8}
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 256,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128}  # fmt: skip


def safetensors(tensors: dict[str, tuple[str, list[int]]], *, data: bool = True) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name, (dtype, shape) in tensors.items():
        size = BITS[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size // 8]}
        place += size // 8
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + (b"\0" * place if data else b"")


def write(
    path: Path, *, tokens: int = 1000, order: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE
) -> Path:
    writer = gguf.GGUFWriter(str(path), "llama", endianess=order)
    writer.add_name("tiny")
    for key, value in (("block_count", 2), ("embedding_length", 64), ("context_length", 512),
                       ("feed_forward_length", 128), ("attention.head_count", 4),
                       ("attention.head_count_kv", 2)):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" * (i % 7) for i in range(tokens)])
    writer.add_array("tokenizer.ggml.scores", [float(i) for i in range(tokens)])
    writer.add_array("general.tags", ["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((tokens, 64), np.float16))
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    for layer in range(2):
        for name, rows, columns in (("attn_q", 64, 64), ("attn_k", 32, 64), ("attn_v", 32, 64),
                                    ("attn_output", 64, 64), ("ffn_gate", 128, 64),
                                    ("ffn_up", 128, 64), ("ffn_down", 64, 128)):  # fmt: skip
            raw = np.zeros((rows, columns // 32 * 34), np.uint8)
            writer.add_tensor(f"blk.{layer}.{name}.weight", raw,
                              raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
