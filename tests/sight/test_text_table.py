"""Tables as lines of text."""

from __future__ import annotations

from glassformer.sight import text_table


def test_names_begin_at_the_left_and_numbers_end_at_the_right():
    lines = text_table.lines(
        [("a", "1", "x"), ("longer", "1,000", "")], ("name", "n", "last"), left_columns=(0, 2)
    )
    assert lines == ["name        n  last", "a           1  x", "longer  1,000"]


def test_nothing_is_cut_coloured_or_read_as_markup():
    wide = "[bold]word[/] " * 500
    (line,) = text_table.lines([(wide.strip(), "7")])
    assert line == f"{wide.strip()}  7"
    # two columns a character
    assert text_table.lines([("日本", "1"), ("abcde", "2")]) == ["日本   1", "abcde  2"]
