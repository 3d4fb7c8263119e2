"""A release before a model's class: what is said, and when the start is refused."""

from __future__ import annotations

from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

import kvproof

ROOT = Path(__file__).parents[2]


def _plan(name: str, release: str) -> kvproof.Plan:
    deployment = kvproof.Deployment(engine=f"vllm@{release}", gpu="H100-80GB")
    return kvproof.plan(kvproof.load_model(name), deployment, contexts=[4096])


@pytest.mark.parametrize(
    ("name", "release", "first"),
    [
        ("openai/gpt-oss-20b", "0.6.0", "0.10.1"),  # no Transformers backend yet
        ("Qwen/Qwen3.5-9B", "0.8.5", "0.17.0"),  # states, which that backend has not
    ],
)
def test_no_class_and_no_way_around_is_no_start(name: str, release: str, first: str) -> None:
    plan = _plan(name, release)
    assert not plan.fits
    assert any("no class for" in text and first in text for text in plan.warnings)


def test_what_the_transformers_backend_may_run_is_planned_with_a_note() -> None:
    plan = _plan("openai/gpt-oss-20b", "0.9.0")
    assert plan.fits
    assert any("Transformers backend" in text and "0.10.1" in text for text in plan.warnings)


@pytest.mark.parametrize("release", ["0.10.1", "0.10.1.1", "0.11.0", "0.32.0"])
def test_from_the_first_release_on_nothing_is_said(release: str) -> None:
    assert not any("no class" in text for text in _plan("openai/gpt-oss-20b", release).warnings)


def _registries() -> ModuleType:
    spec = util.spec_from_file_location("registries", ROOT / "scripts/vllm_registries.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_registries_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "0.9.2.py").write_text('_A_MODELS = {"Old": ("a", "b")}\n')
    (tmp_path / "0.10.1.py").write_text(
        '_A_MODELS: dict = {"Old": ("a", "b"), "New": ("c", "d")}\n'
        '_PREVIOUSLY_SUPPORTED_MODELS = {"Gone": "0.9.2"}\nraise SystemExit\n'
    )
    (tmp_path / "0.10.0.post1.py").write_text('_B_MODELS = {"Middle": ("a", "b")}\n')
    assert _registries().first_releases(tmp_path) == {"Middle": "0.10.0.post1", "New": "0.10.1"}
