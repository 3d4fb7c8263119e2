"""Whisper's shapes: the parameters that the hub counts, and what its encoder's states take."""

from __future__ import annotations

import pytest

import kvproof


@pytest.mark.parametrize(
    ("name", "parameters", "layers"),
    [
        ("tiny", 37_760_640, 4),
        ("base", 72_593_920, 6),
        ("small", 241_734_912, 12),
        ("medium", 763_857_920, 24),
        ("large-v3", 1_543_490_560, 32),
        ("large-v3-turbo", 808_878_080, 4),
    ],
)
def test_parameters_are_the_hubs(name: str, parameters: int, layers: int) -> None:
    model = kvproof.load_model(f"openai/whisper-{name}", offline=True)
    assert model.parameters == parameters
    assert model.layers == layers
    assert [slot.kind for slot in model.slots] == ["full", "cross"] * layers


def test_a_sequence_holds_its_tokens_and_the_encoders() -> None:
    model = kvproof.load_model("whisper-large-v3", offline=True)
    held = kvproof.cache(model, 448, engine="formula")
    assert held.bytes == 32 * (448 + 1500) * 2 * 20 * 64 * 2
