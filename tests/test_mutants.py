"""The list of planted bugs is one that can still be planted: each row names a line that is there."""

from __future__ import annotations

import pytest

from mutate import ROOT, Mutant, mutants, planted

TEXT = (ROOT / "tests/mutants.md").read_text(encoding="utf-8")


def test_every_row_with_a_change_is_read() -> None:
    assert len(mutants(TEXT)) == TEXT.count("` => ") - 1  # the first says how rows are written


@pytest.mark.parametrize("mutant", mutants(TEXT), ids=lambda one: f"{one.file.stem}-{one.bug}")
def test_its_line_is_there(mutant: Mutant) -> None:
    changed = planted(mutant, (ROOT / mutant.file).read_text(encoding="utf-8"))
    assert changed is not None, "the line has changed: change the row in mutants.md as well"
    compile(changed, mutant.file.name, "exec")
    assert all((ROOT / "tests" / part).exists() for part in mutant.tests if part.startswith("test_"))
