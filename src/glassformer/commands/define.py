"""``glassformer define``: a term of the field in a sentence, its formula, its line of code, a
number of a model."""

from __future__ import annotations

from .common import text_table
from .parsing import CommandOutput, Words

EXAMPLES = (
    'glassformer define "causal mask"',
    "glassformer define MQA --json",
    "glassformer define",
)


def run(term: Words = ()) -> CommandOutput:
    """Defines a term of the field.

    term TERM: a term or a synonym; none lists all terms
    """
    from ..learn import glossary

    if not term:
        terms = glossary.terms()
        listed = [(entry.name, entry.page, entry.sentence) for entry in terms]
        return CommandOutput(
            lambda: [entry.to_dict() for entry in terms],
            text_table.lines(listed, left_columns=(0, 1, 2)),
        )
    entry = glossary.find(" ".join(term))
    also = f" (also {', '.join(entry.also)})" if entry.also else ""
    code = f"{entry.code.path}, line {entry.code.line}: {entry.code.text}"
    rows = [
        ("formula", entry.formula),
        ("code", code),
        ("now", entry.live),
        ("road", f"{entry.road} {entry.page}"),
        ("see", ", ".join(entry.related)),
    ]
    table = text_table.lines(
        [(name, text) for name, text in rows if text],
        left_columns=(0, 1),
    )
    return CommandOutput(
        entry.to_dict(),
        [f"{entry.name}{also}\n  {entry.sentence}\n", *table],
        ending=f"Write it yourself: glassformer learn start {entry.exercise}"
        if entry.exercise
        else "",
    )
