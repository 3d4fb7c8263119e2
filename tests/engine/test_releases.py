"""Release numbers as people write them, and the cache types that each release has."""

from __future__ import annotations

import pytest

import kvproof
from kvproof import Deployment
from kvproof.engine.command import read_command, read_flags, render_command
from kvproof.engine.common_flags import named_for
from kvproof.engine.release import padded, post_number, release_number
from kvproof.engine.vllm.versions import era_at, rules_at
from kvproof.errors import UsageError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.11.2+rhai1", (0, 11, 2)),
        ("v0.18.1.dev8", (0, 18, 1)),
        (" 0.20", (0, 20)),
        ("0.5.4.post3", (0, 5, 4)),
        ("1.3.0rc5", (1, 3, 0)),
        ("0.32.15-rc1", (0, 32, 15)),
        ("b11549", (11549,)),
        ("0.6.x", (0, 6)),
        ("0.2x", None),
        ("main", None),
        ("", None),
        (None, None),
        ("9" * 100, None),
    ],
)
def test_release_numbers(text: str | None, number: tuple[int, ...] | None) -> None:
    assert release_number(text) == number


def test_parts_that_are_not_written() -> None:
    assert padded((0, 20)) == (0, 20, 0)
    assert (post_number("0.4.6.post5"), post_number("0.4.6"), post_number(None)) == (5, 0, 0)


def test_every_engine_reads_the_same_release() -> None:
    """A pre-release of TensorRT-LLM, a tagged build of Ollama, a post release of SGLang."""
    from kvproof.engine.ollama.releases import release_of
    from kvproof.engine.sglang.versions import rules_for
    from kvproof.engine.tensorrt_llm.flags import read_flags as trt

    assert trt(Deployment("tensorrt_llm@1.2rc1")).before(1, 3)
    assert release_of("v0.13.5-rc2") == (0, 13, 5)
    assert rules_for("0.4.6.post5").share == "ranks_18"
    assert rules_for("0.0.0.dev1") == rules_for(None)


@pytest.mark.parametrize(
    ("release", "era"),
    [
        ((0, 7, 3), "v0"),
        ((0, 8, 0), "before_0.18"),
        ((0, 18, 0), "since_0.18"),
        ((0, 25, 1), "since_0.18"),
        ((0, 26, 0), "since_0.26"),
    ],
)
def test_eras(release: tuple[int, int, int], era: str) -> None:
    assert era_at(release) == era
    assert rules_at(release).v1 == (era != "v0")


@pytest.mark.parametrize(
    ("engine", "flags", "words"),
    [
        ("vllm@0.19.1", {"kv_cache_dtype": "nvfp4"}, "0.20.0 is the first that has it"),
        ("vllm@0.10.2", {"kv_cache_dtype": "bfloat16"}, "0.11.0 is the first"),
        ("vllm@0.32", {"kv_cache_dtype": "octave_k3v4"}, "0.33.0 is the first"),
        ("vllm@0.33", {"kv_cache_dtype": "turboquant_k8v4"}, "not computed"),
        ("vllm", {"kv_cache_dtype": "fp9"}, "did you mean fp8"),
        ("sglang@0.5.3", {"kv_cache_dtype": "bf16"}, "0.5.4 is the first"),
        ("sglang@0.5.16", {"kv_cache_dtype": "fp4_e2m1"}, "0.5.15 was the last"),
        ("sglang", {"kv_cache_dtype": "fp4_e2m1"}, "0.5.15 was the last"),
        ("tensorrt_llm@1.0", {"kv_cache_dtype": "nvfp4"}, "1.1 is the first"),
        ("tensorrt_llm@1.2", {"kv_cache_dtype": "int8"}, "PyTorch backend"),
        ("llamacpp@b1500", {"cache_type_k": "q8_0"}, "b1620 is the first"),
        ("llamacpp@b2000", {"cache_type_v": "iq4_nl"}, "b2480 is the first"),
        ("llamacpp", {"cache_type_k": "fp8"}, "unknown llama.cpp cache_type_k"),
    ],
)
def test_a_release_without_the_cache_type(engine: str, flags: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Deployment(engine, "H100-80GB", **flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("vllm@0.20.0", {"kv_cache_dtype": "nvfp4"}),
        ("vllm@0.19.2.dev134", {"kv_cache_dtype": "nvfp4"}),
        ("sglang@0.5.15", {"kv_cache_dtype": "fp4_e2m1"}),
        ("sglang@0.5.4", {"kv_cache_dtype": "bf16"}),
        ("tensorrt_llm@0.18", {"kv_cache_dtype": "int8"}),
        ("tensorrt_llm@1.1", {"kv_cache_dtype": "nvfp4"}),
        ("llamacpp@b1620", {"cache_type_k": "q8_0"}),
        ("llamacpp@b0", {"cache_type_k": "q8_0"}),
        ("ollama@0.5.7", {"kv_cache_type": "q8_0", "flash_attention": True}),
    ],
)
def test_a_release_with_the_cache_type(engine: str, flags: dict[str, str]) -> None:
    assert Deployment(engine, "H100-80GB", **flags).flags == flags


@pytest.mark.parametrize("engine", ["vllm@0.8.5", "sglang@0.4.6"])
def test_sixteen_bits_are_the_models_own_where_no_flag_says_so(engine: str) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.1-8B", offline=True)
    got = kvproof.cache(model, tokens=64, engine=engine, dtype="bf16")
    assert got.bytes == kvproof.cache(model, tokens=64, engine="formula", dtype="bf16").bytes


def test_sglang_refuses_names_that_are_not_its_own() -> None:
    with pytest.raises(UsageError, match="fp8_e4m3"):
        read_command("python -m sglang.launch_server --model-path a/b --kv-cache-dtype fp8")
    assert named_for("sglang", {"kv_cache_dtype": "fp8"}) == {"kv_cache_dtype": "fp8_e4m3"}
    assert named_for("vllm", {"kv_cache_dtype": "bf16"}) == {"kv_cache_dtype": "bfloat16"}
    words = render_command("a/b", Deployment("sglang", kv_cache_dtype="fp8"))
    assert read_flags("sglang", words.split()[5:]).deployment.flags == {
        "kv_cache_dtype": "fp8_e4m3"
    }
