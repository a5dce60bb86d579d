"""``glassformer saliency``: what an answer owes to each token of the text."""

from __future__ import annotations

from typing import Literal

from .options import Edits, ModelOptions, Text, edits_suffix
from .parsing import CommandOutput

EXAMPLES = (
    'glassformer saliency tiny "O Romeo, Romeo! wherefore art"',
    'glassformer saliency out/labels "a dull film" --of label --label 0 --baseline pad',
)


def run(
    options: ModelOptions,
    text: Text,
    *,
    source: str | None = None,
    token: str | None = None,
    position: int | None = None,
    of: Literal["logit", "logprob", "label"] | None = None,
    label: int | None = None,
    baseline: Literal["mean", "zero", "pad"] = "mean",
    steps: int = 50,
    edit: Edits = (),
) -> CommandOutput:
    """Scores each token by its influence: gradients and integrated gradients.

    token WORD: the token to explain (the likeliest)
    of: the answer to explain (logit; for a classifier label)
    label N: with --of label: the label to explain (the likeliest)
    baseline: the start of integrated gradients
    steps N: points between the baseline and the text
    json: every number as JSON
    """
    from .. import sight as inspection

    saliency = inspection.saliency(
        *options.load_with_tokenizer(),
        text,
        source=source,
        token=token,
        position=position,
        of=of,
        label=label,
        baseline=baseline,
        steps=steps,
        edits=edit,
    )
    notes = (
        f"Integrated gradients begin at {saliency.baseline} and go through {saliency.steps} points of "
        "Gauss and Legendre.",
    )
    values = f"{saliency.value:.4f}, at the baseline {saliency.at_baseline:.4f}"
    title = f"The {saliency.answer}{edits_suffix(edit)}: {values}\n"
    change = abs(saliency.value - saliency.at_baseline)
    share = f", {abs(saliency.gap) / change:.2%} of the change" if change else ""
    total = f"\nsum of the integrated gradients {saliency.sum:.4f}, gap {saliency.gap:+.2e}{share}"
    return CommandOutput(saliency.to_dict, [title, *saliency.table(), total], notes)
