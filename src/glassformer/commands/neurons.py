"""``glassformer neurons``: the places of a corpus where a neuron, or an expert's share, is
greatest."""

from __future__ import annotations

import argparse

from ..errors import note
from .common import MODEL, computing, counting, emit, model_and_tokenizer, moving, unescaped

EXAMPLES = (
    'glassformer neurons out/mine data.txt --neuron "decoder.blocks.3.ffn.hidden[42]"',
    'glassformer neurons out/experts data.txt --neuron "decoder.blocks.0.ffn.router[2]" --limit '
    "100000",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("data", metavar="DATA", help="a file, a folder or a named corpus")
    said = (
        "a value's path and its number, in a mixture [expert,number]; an expert: "
        "ffn.router[2]; may be repeated"
    )
    one.add_argument("--neuron", action="append", default=[], metavar="PATH[N]", help=said)
    one.add_argument("--top", type=int, default=10, metavar="N", help="places to show (10)")
    one.add_argument(
        "--lowest", action="store_true", help="the least values instead of the greatest"
    )
    one.add_argument(
        "--around", type=int, default=12, metavar="N", help="tokens to show on both sides (12)"
    )
    one.add_argument("--limit", type=int, metavar="N", help="read only the first N tokens")
    one.add_argument(
        "--context", type=int, metavar="N", help="tokens a row has at most (the model's context)"
    )
    one.add_argument(
        "--field", default="text", metavar="NAME", help="the text field of JSONL (text)"
    )
    one.add_argument(
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents"
    )
    computing(one)
    one.add_argument("--json", action="store_true", help="every place as JSON")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import inspection
    from ..data import find

    corpus = find(given.data, given.field, given.separator)
    for line in corpus.notes:
        note(line)
    asked = {name: getattr(given, name) for name in ("top", "lowest", "around", "limit", "context")}
    tell = counting()
    asked["progress"] = moving() or (lambda read, _: tell(read))
    found = inspection.top_activations(
        *model_and_tokenizer(given), corpus.texts(), given.neuron, **asked
    )
    if given.json:
        emit([one.to_dict() for one in found])
        return
    for number, one in enumerate(found):
        seen = (
            f"{one.tokens:,} of {one.read:,} tokens read; mean {one.mean:.4f}, above zero at "
            f"{one.above_zero:.1%}"
        )
        print(f"{chr(10) if number else ''}{one.name}: a value at {seen}\n")
        print("\n".join(one.table()))
