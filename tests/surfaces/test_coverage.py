"""What kvproof models --coverage says is what was measured."""

from __future__ import annotations

from kvproof.surfaces.coverage import coverage_rows


def test_every_measured_architecture_is_equal() -> None:
    measured = [row for row in coverage_rows() if "measured" in row[2]]
    assert len(measured) > 280
    for name, kinds, said in measured:
        assert kinds != "-", name
        caches, parameters = said.split(", ")
        for part in (caches, parameters):
            equal, _, rest = part.partition(" of ")
            assert equal == rest.split()[0], (name, said)


def test_words_narrow_the_list_down() -> None:
    assert [row[0] for row in coverage_rows(("deepseek_v32",))] == ["deepseek_v32"]
    assert not coverage_rows(("nothing like it",))
