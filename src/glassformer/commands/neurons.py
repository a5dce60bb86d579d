"""``glassformer neurons``: the places of a corpus where a neuron, or an expert's share, is
greatest."""

from __future__ import annotations

from .common import is_terminal, progress_counter
from .options import ModelOptions, Separator
from .parsing import CommandOutput, Words
from .sources import find_corpus

EXAMPLES = (
    'glassformer neurons out/mine data.txt --neuron "decoder.blocks.3.ffn.hidden[42]"',
    'glassformer neurons out/experts data.txt --neuron "decoder.blocks.0.ffn.router[2]" --limit '
    "100000",
)


def run(
    options: ModelOptions,
    data: str,
    *,
    neuron: Words = (),
    top: int = 10,
    lowest: bool = False,
    around: int = 12,
    limit: int | None = None,
    context: int | None = None,
    field: str = "text",
    separator: Separator | None = None,
) -> CommandOutput:
    """Finds the positions of a corpus where a neuron is greatest.

    data DATA: a file, a folder or a named corpus
    neuron PATH[N]: a value's path and its index, in a mixture [expert,index]; for an expert:
        ffn.router[2]; may be repeated
    top N: positions to show
    lowest: show the smallest values instead of the greatest
    around N: tokens to show on both sides
    limit N: read only the first N tokens
    context N: at most N tokens of each row (the model's context)
    json: every position as JSON
    """
    from .. import sight as inspection

    corpus = find_corpus(data, field, separator)
    report = progress_counter()
    activations = inspection.top_activations(
        *options.load_with_tokenizer(),
        corpus.texts(),
        neuron,
        top=top,
        lowest=lowest,
        around=around,
        limit=limit,
        context=context,
        progress=is_terminal() or (lambda count, _: report(count)),
    )
    sections = []
    for places in activations:
        title = (
            f"{places.name}: a value at {places.tokens:,} of {places.read:,} tokens read; mean "
            f"{places.mean:.4f}, above zero at {places.above_zero:.1%}\n"
        )
        sections.append("\n".join([title, *places.table()]))
    return CommandOutput([places.to_dict() for places in activations], ["\n\n".join(sections)])
