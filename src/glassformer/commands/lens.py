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
    MODEL,
    columns,
    computing,
    counted,
    editing,
    edits_of,
    emit,
    model_and_tokenizer,
    moving,
    new_file,
    result,
    texts,
    unescaped,
    with_edits,
)

EXAMPLES = (
    'glassformer lens out/mine "The cat sat on the" --track " mat"',
    "glassformer lens out/mine --fit data.txt --out tuned.safetensors",
    'glassformer lens out/mine "The cat sat on the" --tuned tuned.safetensors',
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument(
        "text", nargs="*", metavar="TEXT", help="what the model reads; - is standard input"
    )
    one.add_argument("--source", metavar="TEXT", help="what an encoder-decoder's encoder reads")
    one.add_argument(
        "--positions", metavar="N,...", help="tokens of the text: 0,3-5, all, -3--1 (the last 16)"
    )
    one.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="WORD",
        help="follow this token; may be repeated",
    )
    one.add_argument("--top", type=int, default=5, metavar="N", help="the N likeliest tokens (5)")
    one.add_argument(
        "--tuned", type=Path, metavar="FILE", help="look through a tuned lens, as --fit writes it"
    )
    computing(one)
    editing(one)
    one.add_argument("--json", action="store_true", help="every number as JSON")
    fit = one.add_argument_group(
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
        "--separator", type=unescaped, metavar="TEXT", help="what parts a plain file's documents"
    )
    fit.add_argument("--steps", type=int, default=200, metavar="N", help="steps of Adam (200)")
    fit.add_argument("--tokens", type=int, default=1024, metavar="N", help="tokens a step (1024)")
    fit.add_argument(
        "--context", type=int, metavar="N", help="tokens a text has at most (the model's context)"
    )
    fit.add_argument(
        "--rate", type=float, default=3e-3, metavar="R", help="learning rate, falling to 0 (0.003)"
    )


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    if given.fit is not None:
        fit(given)
        return
    need(given.out is None, "--out goes with --fit DATA; the lens itself is printed.")
    need(
        given.target is None and given.columns is None, "--target and --columns go with --fit DATA."
    )
    need(len(given.text) == 1, f"There are {counted(len(given.text), 'text')}; give one.")
    from ..inspection import TunedLens, logit_lens

    given.prompts, edits = None, edits_of(given)
    (text,) = texts(given, given.text)
    tuned = None if given.tuned is None else TunedLens.load(given.tuned)
    model, tokenizer = model_and_tokenizer(given)
    asked = {"positions": given.positions, "track": given.track, "top": given.top, "tuned": tuned}
    seen = logit_lens(model, tokenizer, text, source=given.source, edits=edits, **asked)
    if given.json:
        emit(seen.to_dict())
        return
    for line in seen.notes:
        note(line)
    print(
        f"{seen.lens}{with_edits(edits)}: the likeliest token and its probability\n{seen.text()}\n"
    )
    print(f"at {seen.positions[-1]}:{seen.pieces[-1].shown}")
    print("\n".join(seen.table()))


def fit(given: argparse.Namespace) -> None:
    """A tuned lens, fitted and written."""
    need(given.out is not None, "--fit writes a file; name it: --out FILE.safetensors.")
    need(
        not given.text and given.tuned is None,
        "--fit takes DATA alone; look at a text afterwards, with --tuned.",
    )
    from .. import config
    from ..data import find
    from ..inspection import fit_tuned_lens, streams

    out = new_file(given.out, given.fit)
    model, tokenizer = model_and_tokenizer(given)
    rows: Iterable[tuple[Any, Any]]
    if isinstance(model.config, config.EncoderDecoder):
        name, rows = pairs(given, model, tokenizer)
    else:
        need(
            given.target is None,
            "--target is what an encoder-decoder writes; this model reads one text.",
        )
        corpus = find(given.fit, given.field, given.separator)
        for line in corpus.notes:
            note(line)
        name = corpus.name
        rows = (
            (row, None) for row in streams.windows(model, tokenizer, corpus.texts(), given.context)
        )
    how: dict[str, Any] = {"steps": given.steps, "tokens": given.tokens, "rate": given.rate}
    lens = fit_tuned_lens(model, rows, data=name, **how, progress=progress(given.steps))
    lens.save(out)
    depths = zip(lens.depths, lens.before, lens.after, strict=True)
    rows_shown = [(path, f"{before:.4f}", f"{after:.4f}") for path, before, after in depths]
    heading = ("depth", "KL before", "KL after")
    note("KL(own || depth) in nats, the mean of the tokens of texts held out.")
    result(given.json, lens.to_dict(), rows_shown, heading=heading)
    note(f"{out} holds the tuned lens, {lens.about()}")


def pairs(
    given: argparse.Namespace, model: Any, tokenizer: Any
) -> tuple[str, Iterable[tuple[Any, Any]]]:
    """The examples' name, and each as an encoder-decoder reads it."""
    from ..data import examples
    from ..inspection import streams
    from ..training.objectives import Seq2Seq

    need(
        given.context is None,
        "--context cuts a running text; an encoder-decoder's are cut to its context.",
    )
    where = given.fit if given.target is None else {"source": given.fit, "target": given.target}
    table = examples.read(where, Seq2Seq(), columns=columns(given.columns))
    for line in table.notes:
        note(line)
    texts = [(one.first, one.second or "") for one in table.examples]
    return table.name, streams.pairs(model, tokenizer, texts)


def progress(steps: int) -> Any:
    """How far the fit is, in one line of the terminal."""

    def report(step: int, kl: float) -> None:
        if moving():
            print(
                f"\rstep {step:,} of {steps:,}, KL {kl:.4f} ", end="", file=sys.stderr, flush=True
            )
            if step == steps:
                print(file=sys.stderr)
        elif step % max(1, steps // 10) == 0:
            note(f"step {step:,} of {steps:,}, KL {kl:.4f}")

    return report
