"""``glassformer classify``: the label of each text, or of each word, and how sure the model is."""

from __future__ import annotations

import argparse
from typing import Any

from .common import (
    add_device_options,
    add_edit_option,
    add_text_options,
    add_truncate_option,
    load_model_and_tokenizer,
    parse_edits,
    print_json,
    progress_counter,
    texts,
)

EXAMPLES = (
    'glassformer classify out/labels "a film to see twice"',
    'glassformer classify out/names "Ann saw Rome ." # a word and its label a line',
)


def options(parser: argparse.ArgumentParser) -> None:
    add_text_options(parser)
    parser.add_argument(
        "--second",
        action="append",
        metavar="TEXT",
        help="the other text, where the model reads two",
    )
    add_truncate_option(parser)
    add_edit_option(parser)
    add_device_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="every label's probability as JSON, a text a line"
    )


def run(args: argparse.Namespace) -> None:
    from .. import generation
    from ..errors import need

    first = texts(args, args.text)
    second = args.second
    unequal = f"There are {len(first)} texts and {len(second or ())} second ones; give as many."
    need(second is None or len(second) == len(first), unequal)
    need(args.batch >= 1, f"batch is {args.batch}; give 1 or more.")
    args.edit = parse_edits(args)
    model, tokenizer = load_model_and_tokenizer(args)
    if generation.tags(model.config):
        need(
            second is None,
            "This model gives each word its label and reads one text; leave --second out.",
        )
        print_tags(args, model, tokenizer, [text.split() for text in first])
        return
    pairs = first if second is None else list(zip(first, second, strict=True))
    options = {
        "truncate": args.truncate,
        "batch": args.batch,
        "progress": progress_counter("texts"),
        "edits": args.edit,
    }
    probabilities = generation.classify(model, tokenizer, pairs, **options)
    names = label_names(args.model, probabilities.shape[1])
    for text, row in zip(first, probabilities.tolist(), strict=True):
        if args.json:
            print_json(
                {
                    "text": text,
                    **(dict(zip(names, row, strict=True)) if len(row) > 1 else {"value": row[0]}),
                }
            )
        elif len(row) == 1:
            print(f"{row[0]:10.4f}  {text}")
        else:
            best = max(range(len(row)), key=row.__getitem__)
            print(f"{names[best]:12} {row[best]:.4f}  {text}")


def print_tags(
    args: argparse.Namespace, model: Any, tokenizer: Any, sentences: list[list[str]]
) -> None:
    """The label of each word, a word a line as CoNLL has it, or a sentence a line as JSON."""
    from .. import generation

    names = label_names(args.model, model.config.token_head.labels)
    options = {"batch": args.batch, "progress": progress_counter("texts"), "edits": args.edit}
    probabilities = generation.tag(model, tokenizer, sentences, **options)
    for words, rows in zip(sentences, probabilities, strict=True):
        labels = [names[best] for best in rows.argmax(1).tolist()]
        if args.json:
            print_json({"tokens": words, "labels": labels, "probabilities": rows.amax(1).tolist()})
        else:
            print("".join(f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)))


def label_names(name: str, count: int) -> list[str]:
    """The labels' names that were saved with a model, or their numbers."""
    from ..checkpoints import Checkpoint

    return list(Checkpoint.open(name).labels) or [str(number) for number in range(count)]
