"""``glassformer attribution``: what each part of a model added to a logit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from .common import CommandOutput, tables
from .options import Edits, ModelOptions, Text, edits_suffix
from .signature import Count

EXAMPLES = (
    'glassformer attribution out/mine "The cat sat on the"',
    'glassformer attribution out/mine "The cat sat on the" --token " mat" --against " hat"',
)


def run(
    options: ModelOptions,
    text: Text,
    *,
    source: str | None = None,
    token: str | None = None,
    against: str | None = None,
    position: int | None = None,
    of: Literal["logit", "label"] | None = None,
    top: Count = 20,
    edit: Edits = (),
) -> CommandOutput:
    """Attributes a logit to the parts of a model.

    token WORD: whose logit: a token, or a label by name or number (the likeliest)
    against WORD: less the logit of this one
    of: of a token or of a classifier's label (what there is)
    top N: the N parts that added or took most
    json: every part as JSON
    """
    from .. import sight as inspection
    from ..formats.checkpoint import Checkpoint
    from ..sight.streams import answer_kind

    model, tokenizer = options.load_with_tokenizer()
    labels: list[str] = []
    if answer_kind(model, of) == "label":
        labels = list(Checkpoint.open(options.model).labels)
    token_or_label, against_or_label = (
        labels.index(name) if name in labels else name for name in (token, against)
    )
    attribution = inspection.attribute(
        model,
        tokenizer,
        text,
        source=source,
        token=token_or_label,
        against=against_or_label,
        position=position,
        of=of,
        edits=edit,
    )
    if labels:
        attribution = replace(
            attribution,
            piece=_label(labels, attribution.token),
            against_piece=_label(labels, attribution.against),
        )
    against_text = (
        ""
        if attribution.against_piece is None
        else f" less that of {attribution.against_piece.display}"
    )
    capped = "" if attribution.capped is None else f" ({attribution.capped:.4f} after the cap)"
    place = "" if attribution.position is None else f" at position {attribution.position}"
    title = (
        f"The logit of {attribution.piece.display}{against_text}{place}{edits_suffix(edit)}: "
        f"{attribution.logit:.4f}{capped}\n"
    )
    blocks = attribution.by_block()
    kinds = list(dict.fromkeys(kind for _, sums in blocks for kind in sums))
    rows = [
        (name, *(f"{sums[kind]:+.4f}" if kind in sums else "" for kind in kinds))
        for name, sums in blocks
    ]
    lines = [title, *attribution.table(top), "", *tables.lines(rows, ("", *kinds))]
    return CommandOutput(attribution.to_dict, lines, attribution.notes)


def _label(names: list[str], number: int | None) -> Any:
    """A label by its name."""
    from ..sight.labels import TokenLabel

    return (
        None
        if number is None
        else TokenLabel(f"label {number}", f'label {number} ("{names[number]}")')
    )
