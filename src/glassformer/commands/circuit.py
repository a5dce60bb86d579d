"""``glassformer circuit``: the nodes that carry an answer, and which of them feeds which."""

from __future__ import annotations

from typing import Any

from .options import ModelOptions, Text
from .parsing import CommandOutput, Whole, Words

EXAMPLES = (
    'glassformer circuit tiny "O Romeo, Romeo! wherefore art" --answer " thou" --instead " you"',
    'glassformer circuit tiny "O Romeo, Romeo! wherefore art" --corrupted '
    '"O father, father! wherefore art" --least 0.02 --greedy',
)


def run(
    options: ModelOptions,
    text: Text,
    *,
    source: Words = (),
    answer: str | None = None,
    instead: str | None = None,
    position: int | None = None,
    corrupted: str | None = None,
    least: float = 0.05,
    greedy: bool = False,
    neurons: bool = False,
    draws: Whole = 20,
    seed: int = 0,
) -> CommandOutput:
    """Finds the circuit behind an answer, and measures how much of it the circuit alone keeps.

    source TEXT: the source of an encoder-decoder; repeat it for a corrupted source, at whose values
        what is not in the circuit is held
    answer WORD: the token, or the number of a label, to follow back (the likeliest)
    instead WORD: subtract the logit of this token or label
    corrupted TEXT: hold what is not in the circuit at its values for this text of as many tokens (at
        its mean over TEXT)
    least SHARE: the share of the answer that a node adds or takes at least
    greedy: take nodes out, the smallest first, where the measured answer stays within this share
    neurons: split MLPs and experts into single neurons
    draws N: random circuits of as many nodes to compare with
    json: nodes, edges and every measured answer as JSON
    """
    from ..sight import circuit
    from ..sight.circuits import NOTE

    model, tokenizer = options.load_with_tokenizer()
    options.note_untrained()
    sources: Any = source[0] if len(source) == 1 else tuple(source) or None
    result = circuit(
        model,
        tokenizer,
        text,
        source=sources,
        answer=answer,
        instead=instead,
        position=position,
        corrupted=corrupted,
        least=least,
        greedy=greedy,
        neurons=neurons,
        draws=draws,
        seed=seed,
    )
    return CommandOutput(result.to_dict, result.lines, [NOTE])
