"""``glassformer neurons``: the places of a corpus where a neuron, or an expert's share, is
greatest."""

from __future__ import annotations

import argparse

from ..errors import note
from .common import (
    MODEL_HELP,
    add_device_options,
    is_terminal,
    load_model_and_tokenizer,
    print_json,
    progress_counter,
    unescape,
)

EXAMPLES = (
    'glassformer neurons out/mine data.txt --neuron "decoder.blocks.3.ffn.hidden[42]"',
    'glassformer neurons out/experts data.txt --neuron "decoder.blocks.0.ffn.router[2]" --limit '
    "100000",
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("data", metavar="DATA", help="a file, a folder or a named corpus")
    help = (
        "a value's path and its number, in a mixture [expert,number]; an expert: "
        "ffn.router[2]; may be repeated"
    )
    parser.add_argument("--neuron", action="append", default=[], metavar="PATH[N]", help=help)
    parser.add_argument("--top", type=int, default=10, metavar="N", help="places to show (10)")
    parser.add_argument(
        "--lowest", action="store_true", help="the least values instead of the greatest"
    )
    parser.add_argument(
        "--around", type=int, default=12, metavar="N", help="tokens to show on both sides (12)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="read only the first N tokens")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens a row has at most (the model's context)"
    )
    parser.add_argument(
        "--field", default="text", metavar="NAME", help="the text field of JSONL (text)"
    )
    parser.add_argument(
        "--separator",
        type=unescape,
        metavar="TEXT",
        help="what parts a plain file's documents",
    )
    add_device_options(parser)
    parser.add_argument("--json", action="store_true", help="every place as JSON")


def run(args: argparse.Namespace) -> None:
    from .. import inspection
    from ..data import find

    corpus = find(args.data, args.field, args.separator)
    for line in corpus.notes:
        note(line)
    options = {
        name: getattr(args, name) for name in ("top", "lowest", "around", "limit", "context")
    }
    tell = progress_counter()
    options["progress"] = is_terminal() or (lambda count, _: tell(count))
    activations = inspection.top_activations(
        *load_model_and_tokenizer(args), corpus.texts(), args.neuron, **options
    )
    if args.json:
        print_json([neuron.to_dict() for neuron in activations])
        return
    for number, neuron in enumerate(activations):
        statistics = (
            f"{neuron.tokens:,} of {neuron.read:,} tokens read; mean {neuron.mean:.4f}, above zero at "
            f"{neuron.above_zero:.1%}"
        )
        print(f"{chr(10) if number else ''}{neuron.name}: a value at {statistics}\n")
        print("\n".join(neuron.table()))
