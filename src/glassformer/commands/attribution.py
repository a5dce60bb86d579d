"""``glassformer attribution``: what each part of a model added to a logit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from .options import Edits, ModelOptions, Text
from .parsing import CommandOutput, Count

EXAMPLES = (
    'glassformer attribution tiny "O Romeo, Romeo! wherefore art"',
    'glassformer attribution tiny "O Romeo, Romeo! wherefore art" --token " thou" --against " you"',
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

    token WORD: the token, or the label by name or number, to explain (the likeliest)
    against WORD: subtract the logit of this token or label
    of: explain a token's logit or a classifier's label (the one the model has)
    top N: the N components with the largest contributions
    json: every component as JSON
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
    capped = "" if attribution.capped is None else f" ({attribution.capped:.4f} after the cap)"
    title = f"The {attribution.answer}: {attribution.logit:.4f}{capped}\n"
    lines = [title, *attribution.table(top), "", *attribution.block_table()]
    return CommandOutput(attribution.to_dict, lines, attribution.notes)


def _label(names: list[str], number: int | None) -> Any:
    """A label by its name."""
    from ..sight.labels import TokenLabel

    return (
        None
        if number is None
        else TokenLabel(f"label {number}", f'label {number} ("{names[number]}")')
    )
