"""--images, --audio-seconds and --video-frames of `kvproof plan`, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvproof
from kvproof.errors import UsageError
from kvproof.model.multimodal import with_encoder_tokens
from kvproof.surfaces.cli.media import parse_frame_size, parse_images

QWEN = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
    "text_config": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8,
                    "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1000},
}  # fmt: skip
MLLAMA = {
    "model_type": "mllama",
    "architectures": ["MllamaForConditionalGeneration"],
    "vision_config": {"image_size": 560, "patch_size": 14, "max_num_tiles": 4},
    "text_config": {"num_hidden_layers": 5, "cross_attention_layers": [3]},
}


def plan(folder: Path, config: dict[str, object], *args: str) -> subprocess.CompletedProcess[str]:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-W", "error", "-m", "kvproof", "plan", str(path), "--gpu",
               "H100-80GB", "--engine", "formula", "--offline", *args]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_media_are_part_of_every_context(tmp_path: Path) -> None:
    done = plan(tmp_path, QWEN, "--images", "3x1024x768,640x480", "--video-frames", "16",
                "--frame-size", "640x480", "--contexts", "8k,32k")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3 images 1024x768: 2,997 (3 x (1036x756 / 28 = 27 x 37 = 999))" in done.stdout
    assert "6,516 tokens of every context; left for text: 1,676 of 8k" in done.stdout


def test_json_holds_the_terms(tmp_path: Path) -> None:
    done = plan(tmp_path, QWEN, "--images", "1024x768", "--json")
    result = json.loads(done.stdout)["result"]
    assert result["media"]["tokens"] == 999
    assert result["media"]["terms"][0]["formula"]
    assert [row["context"] for row in result["rows"]] == [4096, 8192, 32768, 131072]


def test_explain_names_the_source(tmp_path: Path) -> None:
    done = plan(tmp_path, QWEN, "--images", "1024x768", "--explain")
    assert "preprocessor_config.json of Qwen2-VL" in done.stdout


def test_media_longer_than_an_asked_context_are_refused(tmp_path: Path) -> None:
    done = plan(tmp_path, QWEN, "--images", "1024x768", "--contexts", "512,4k")
    assert done.returncode == 2
    assert "take 999 tokens" in done.stderr
    assert "a context of 512" in done.stderr


def test_default_contexts_that_are_too_short_are_left_out(tmp_path: Path) -> None:
    done = plan(tmp_path, QWEN, "--images", "3000x3000", "--json")
    rows = json.loads(done.stdout)["result"]["rows"]
    assert [row["context"] for row in rows] == [32768, 131072]
    served = ("--engine", "vllm", "--images", "3000x3000", "--max-model-len")
    cut = plan(tmp_path, QWEN, *served, "32k", "--json")
    assert [row["context"] for row in json.loads(cut.stdout)["result"]["rows"]] == [32768]
    full = plan(tmp_path, QWEN, *served, "8k")
    assert full.returncode == 2
    assert "no room for text in a context of 8,192" in full.stderr


def test_cross_attention_slots_are_beside_the_context(tmp_path: Path) -> None:
    done = plan(tmp_path, MLLAMA, "--images", "1024x768")
    assert done.returncode == 0, done.stderr
    assert "cross-attention slots (encoder_tokens): 6,404" in done.stdout
    assert "beside its context" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--images", "1024"), "can't read an image size"),
        (("--images", "0x1024x768"), "can't read an image size"),
        (("--images", "999999x9x9,2x9x9"), "can't read an image size"),
        (("--audio-seconds", "3"), "no rule is known for audio"),
        (("--video-frames", "8"), "frame_size"),
    ],
)
def test_bad_media(tmp_path: Path, args: tuple[str, ...], words: str) -> None:
    done = plan(tmp_path, QWEN, *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_sizes_are_read() -> None:
    assert parse_images("2x640x480, 10x20") == ((640, 480), (640, 480), (10, 20))
    assert parse_frame_size("640x480") == (640, 480)
    with pytest.raises(UsageError):
        parse_frame_size("2x640x480")


@pytest.mark.parametrize("engine", ["formula", "vllm"])
def test_what_an_image_holds_counts_in_how_many_fit(engine: str) -> None:
    model = kvproof.load_model("meta-llama/Llama-3.2-11B-Vision")
    seeing = with_encoder_tokens(model, 6404)
    deployment = kvproof.Deployment(engine, gpu="H100-80GB", max_model_len=8192)
    text, image = (kvproof.capacity(m, deployment, 40 * 10**9) for m in (model, seeing))
    held = 8 * 6404 * 4096
    assert kvproof.cache(seeing, tokens=8192, engine="formula").bytes == 2**30 + held
    assert text.sequences(8192) == 40 * 10**9 // 2**30
    assert image.sequences(8192) == pytest.approx(40 * 10**9 // (2**30 + held), abs=1)
    rows = kvproof.plan(seeing, deployment, [8192]).rows
    assert rows[0].bytes_per_sequence == 2**30 + held


def test_images_of_a_cross_attention_model_lower_the_plan() -> None:
    fits = []
    for more in ([], ["--images", "1120x1120"]):
        args = ["meta-llama/Llama-3.2-11B-Vision", "--gpu", "H100-80GB", "--contexts", "8k"]
        command = [sys.executable, "-m", "kvproof", *args, *more, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        fits.append(json.loads(done.stdout)["result"]["rows"][0]["sequences"])
    assert fits[1] < fits[0]
