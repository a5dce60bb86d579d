"""``glassformer quantize``: a model's weights in 8 or 4 bits, and what that costs, matrix by
matrix."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import sys
from typing import Any

from .. import files
from ..errors import UserError, need, note
from .common import (
    MODEL_HELP,
    add_use_option,
    is_terminal,
    new_file,
    new_folder,
    note_untrained,
    print_json,
    print_pairs,
    print_table,
)

EXAMPLES = (
    "glassformer quantize out/mine out/mine-int8 --bits 8",
    "glassformer quantize out/mine out/mine-int4 --bits 4 --calibrate notes.txt --picture harm.svg",
    "glassformer quantize out/pair out/pair-int8 --bits 8 --calibrate valid.en --target valid.de",
)
EPILOG = (
    "The report is kept in FOLDER/quantization.json. What it says and how it is measured: "
    "docs/quantize.md."
)
REPORT = "quantization.json"


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help=MODEL_HELP)
    add("folder", metavar="FOLDER", help="where to save it")
    add("--bits", type=int, required=True, metavar="N", help="8 or 4, of each weight")
    add(
        "--group",
        type=int,
        default=32,
        metavar="N",
        help="weights that share a scale: a multiple of 32 (32)",
    )
    add(
        "--head",
        type=int,
        default=8,
        metavar="N",
        help="bits of embeddings and head: 8, or 16 to leave them (8)",
    )
    add(
        "--calibrate",
        metavar="DATA",
        help="a text to round for and to measure on: a file, a folder or a corpus",
    )
    add(
        "--target",
        metavar="FILE",
        help="of an encoder-decoder: what it is to write for --calibrate, line by line",
    )
    add("--tokens", type=int, default=16_384, metavar="N", help="of it, to round for (16,384)")
    add(
        "--measure",
        type=int,
        default=2_048,
        metavar="N",
        help="of it, held out, to measure on (2,048)",
    )
    add(
        "--dtype",
        metavar="D",
        help="of what is left: float32, bfloat16 or float16 (the checkpoint's own)",
    )
    add(
        "--top",
        type=int,
        default=12,
        metavar="N",
        help="matrices that are shown, the most harmful first (12)",
    )
    add("--picture", metavar="FILE", help="the harm of each matrix, as .svg or .png")
    add("--json", action="store_true", help="the whole report as JSON")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..checkpoints import Checkpoint, store
    from ..nn.quantized import Layout, quantized
    from ..quantize import picture, quantize_model

    layout = Layout(args.bits, args.group, args.head)
    need(
        min(args.tokens, args.measure) > 0,
        "--tokens and --measure are numbers of tokens; give 1 or more.",
    )
    need(args.top >= 0, "--top is a number of matrices; give 0 or more.")
    need(
        args.target is None or args.calibrate is not None,
        "--target goes with --calibrate, which has its sources.",
    )
    image = (
        None
        if args.picture is None
        else new_file(args.picture, args.model, args.calibrate, args.target)
    )
    suffixes = (".svg", ".png")
    need(
        image is None or image.suffix in suffixes,
        f"--picture {args.picture} is neither .svg nor .png; name one.",
    )
    drawn = image is None or importlib.util.find_spec("matplotlib") is not None
    need(drawn, "--picture needs matplotlib; pip install matplotlib, or leave it out.")
    out, opened = new_folder(args.folder), Checkpoint.open(args.model)
    already = f"{args.model} is quantised already; give the model that it was made of."
    adapter = (
        f"{args.model} is an adapter on quantised weights; give a model that is not quantised."
    )
    need(opened.quantization is None, already)
    need(opened.base is None or Checkpoint.open(opened.base).quantization is None, adapter)
    note_untrained(args.model)
    tokenizer, text = opened.tokenizer(), None
    if args.calibrate is not None:
        none = f"{args.model} has no tokenizer, so no text can be read; leave --calibrate out."
        if tokenizer is None:
            raise UserError(none)
        text = _text(args, opened.config, tokenizer)
    model = opened.model(dtype=args.dtype)
    need(not quantized(model), already)  # a GGUF file's codes
    report_progress = _progress(text is not None)
    report = quantize_model(model, layout, text, name=args.model, progress=report_progress)
    report_progress("")
    written = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    store.save(model, out, tokenizer, labels=opened.labels, beside={REPORT: written})
    if image is not None:
        page = io.BytesIO()
        picture(report).savefig(page, format=image.suffix[1:])
        files.write(image, page.getvalue())
    short = sum(row.shape[-1] < layout.group for row in report.rows)
    if short:
        note(
            f"{short} of {len(report.rows)} matrices have rows shorter than a group of "
            f"{layout.group}: a scale a row."
        )
    if args.json:
        print_json(report.to_dict())
        return
    _print_report(report, args.top)
    print(
        f"\n{out}: {report.before / 1e6:,.2f} MB of {report.dtype} became "
        f"{report.after / 1e6:,.2f} MB."
    )
    if image is not None:
        print(f"{image}: the harm of each matrix, layer by layer.")
    if text is None:
        better = ", and 4 bits are rounded for it" if layout.bits == 4 else ""
        print(
            "These are the weights' own errors. --calibrate DATA, a text, adds what becomes "
            f"of the answers{better}."
        )


def _text(args: argparse.Namespace, cfg: Any, tokenizer: Any) -> Any:
    """The text of --calibrate as the model reads it, and with --target in pairs."""
    from ..config import EncoderDecoder
    from ..quantize import Text

    if args.target is None:
        from ..data.registry import find

        return Text.of(find(args.calibrate), tokenizer, cfg, args.tokens, args.measure)
    from ..data import examples
    from ..training.encoded import encode
    from ..training.objectives import Seq2Seq

    need(
        isinstance(cfg, EncoderDecoder), f"{args.model} is no encoder-decoder; leave --target out."
    )
    objective = Seq2Seq()
    table = examples.read_examples({"source": args.calibrate, "target": args.target}, objective)
    encoded = encode(
        table, tokenizer, objective, cfg, cfg.context, "end", tokenizer.source_tokenizer
    )
    target, source = (
        side.rows(name) for side, name in zip(encoded.sides, ("tokens", "source"), strict=True)
    )
    return Text.of_pairs(list(zip(source, target, strict=True)), args.tokens, args.measure)


def _print_report(report: Any, top: int) -> None:
    from ..quantize import display

    count = min(top, len(report.rows))
    of = (
        f"{count} of {len(report.rows)}; --top N shows more"
        if count < len(report.rows)
        else f"all {count}"
    )
    by = (
        "the most harmful first"
        if any(row.effect for row in report.rows)
        else "the greatest error first"
    )
    print(f"Each matrix alone, {by} ({of}):")
    heading, *lines = display.matrices(report, top)
    print_table(lines, heading)
    print("\nAll of them, by how they were rounded (the last is kept):")
    heading, *lines = display.wholes(report)
    print_table(lines, heading)
    print()
    print_pairs(*display.legend(report))


def _progress(reads: bool) -> Any:
    """Returns a function that shows the current step in a line that is overwritten; nothing where
    standard error is no terminal."""
    if is_terminal():
        return lambda message: print(f"\r\x1b[K{message}", end="\r", file=sys.stderr, flush=True)
    if reads:
        note(
            "Calibrating and measuring reads the text once for each matrix; a large model takes "
            "minutes."
        )
    return lambda _: None
