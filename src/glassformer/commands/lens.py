"""``glassformer lens``: what each depth of a model would say; a tuned lens fitted, and looked
through."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import need, note
from .common import (
    MODEL_HELP,
    add_device_options,
    add_edit_option,
    count_noun,
    edits_suffix,
    is_terminal,
    load_model_and_tokenizer,
    new_file,
    parse_columns,
    parse_edits,
    print_json,
    print_result,
    texts,
    unescape,
)

EXAMPLES = (
    'glassformer lens out/mine "The cat sat on the" --track " mat"',
    "glassformer lens out/mine --fit data.txt --out tuned.safetensors",
    'glassformer lens out/mine "The cat sat on the" --tuned tuned.safetensors',
)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="what the model reads; - is standard input"
    )
    parser.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    parser.add_argument(
        "--positions", metavar="N,...", help="tokens of the text: 0,3-5, all, -3--1 (the last 16)"
    )
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="WORD",
        help="follow this token; may be repeated",
    )
    parser.add_argument(
        "--top", type=int, default=5, metavar="N", help="the N likeliest tokens (5)"
    )
    parser.add_argument(
        "--tuned", type=Path, metavar="FILE", help="look through a tuned lens, as --fit writes it"
    )
    add_device_options(parser)
    add_edit_option(parser)
    parser.add_argument("--json", action="store_true", help="every number as JSON")
    fit = parser.add_argument_group(
        "a tuned lens: a translator for each depth, fitted to say what the model will"
    )
    fit.add_argument("--fit", metavar="DATA", help="fit one on a file, a folder or a named corpus")
    fit.add_argument(
        "--target",
        metavar="FILE",
        help="of an encoder-decoder: the targets, line by line; DATA: sources",
    )
    fit.add_argument(
        "--columns",
        metavar="P=C,...",
        help="of one: what a table calls its parts: source=0,target=1",
    )
    fit.add_argument("--out", type=Path, metavar="FILE.safetensors", help="where it goes")
    fit.add_argument(
        "--field", default="text", metavar="NAME", help="the text field of JSONL (text)"
    )
    fit.add_argument(
        "--separator",
        type=unescape,
        metavar="TEXT",
        help="what parts a plain file's documents",
    )
    fit.add_argument("--steps", type=int, default=200, metavar="N", help="steps of Adam (200)")
    fit.add_argument("--tokens", type=int, default=1024, metavar="N", help="tokens a step (1024)")
    fit.add_argument(
        "--context", type=int, metavar="N", help="tokens a text has at most (the model's context)"
    )
    fit.add_argument(
        "--rate", type=float, default=3e-3, metavar="R", help="learning rate, falling to 0 (0.003)"
    )


def run(args: argparse.Namespace) -> None:
    if args.fit is not None:
        fit_lens(args)
        return
    need(args.out is None, "--out goes with --fit DATA; the lens itself is printed.")
    need(args.target is None and args.columns is None, "--target and --columns go with --fit DATA.")
    need(len(args.text) == 1, f"There are {count_noun(len(args.text), 'text')}; give one.")
    from ..inspection import TunedLens, logit_lens

    args.prompts, edits = None, parse_edits(args)
    (text,) = texts(args, args.text)
    tuned = None if args.tuned is None else TunedLens.load(args.tuned)
    model, tokenizer = load_model_and_tokenizer(args)
    options = {"positions": args.positions, "track": args.track, "top": args.top, "tuned": tuned}
    lens = logit_lens(model, tokenizer, text, source=args.source, edits=edits, **options)
    if args.json:
        print_json(lens.to_dict())
        return
    for line in lens.notes:
        note(line)
    print(
        f"{lens.lens}{edits_suffix(edits)}: the likeliest token and its probability\n{lens.text()}\n"
    )
    print(f"at {lens.positions[-1]}:{lens.pieces[-1].shown}")
    print("\n".join(lens.table()))


def fit_lens(args: argparse.Namespace) -> None:
    """A tuned lens, fitted and written."""
    need(args.out is not None, "--fit writes a file; name it: --out FILE.safetensors.")
    need(
        not args.text and args.tuned is None,
        "--fit takes DATA alone; look at a text afterwards, with --tuned.",
    )
    from .. import config
    from ..data import find
    from ..inspection import fit_tuned_lens, streams

    out = new_file(args.out, args.fit)
    model, tokenizer = load_model_and_tokenizer(args)
    rows: Iterable[tuple[Any, Any]]
    if isinstance(model.config, config.EncoderDecoder):
        name, rows = example_pairs(args, model, tokenizer)
    else:
        need(
            args.target is None,
            "--target is what an encoder-decoder writes; this model reads one text.",
        )
        corpus = find(args.fit, args.field, args.separator)
        for line in corpus.notes:
            note(line)
        name = corpus.name
        rows = (
            (row, None) for row in streams.windows(model, tokenizer, corpus.texts(), args.context)
        )
    options: dict[str, Any] = {"steps": args.steps, "tokens": args.tokens, "rate": args.rate}
    lens = fit_tuned_lens(model, rows, data=name, **options, progress=fit_progress(args.steps))
    lens.save(out)
    depths = zip(lens.depths, lens.before, lens.after, strict=True)
    rows_shown = [(path, f"{before:.4f}", f"{after:.4f}") for path, before, after in depths]
    heading = ("depth", "KL before", "KL after")
    note("KL(own || depth) in nats, the mean of the tokens of texts held out.")
    print_result(args.json, lens.to_dict(), rows_shown, heading=heading)
    note(f"{out} holds the tuned lens, {lens.origin()}")


def example_pairs(
    args: argparse.Namespace, model: Any, tokenizer: Any
) -> tuple[str, Iterable[tuple[Any, Any]]]:
    """The examples' name, and each as an encoder-decoder reads it."""
    from ..data import examples
    from ..inspection import streams
    from ..training.objectives import Seq2Seq

    need(
        args.context is None,
        "--context cuts a running text; an encoder-decoder's are cut to its context.",
    )
    files = args.fit if args.target is None else {"source": args.fit, "target": args.target}
    table = examples.read_examples(files, Seq2Seq(), columns=parse_columns(args.columns))
    for line in table.notes:
        note(line)
    texts = [(example.first, example.second or "") for example in table.examples]
    return table.name, streams.pairs(model, tokenizer, texts)


def fit_progress(steps: int) -> Any:
    """Returns a function that shows the fit's progress in one line of the terminal."""

    def report(step: int, kl: float) -> None:
        if is_terminal():
            print(
                f"\rstep {step:,} of {steps:,}, KL {kl:.4f} ", end="", file=sys.stderr, flush=True
            )
            if step == steps:
                print(file=sys.stderr)
        elif step % max(1, steps // 10) == 0:
            note(f"step {step:,} of {steps:,}, KL {kl:.4f}")

    return report
