"""``glassformer quantize``: a model's weights in 8 or 4 bits, and what that costs, matrix by
matrix."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import files
from ..core.errors import need, note
from .common import is_terminal, new_file, new_folder, text_table
from .options import note_untrained
from .parsing import CommandOutput, Count, Whole, Words
from .sources import read_examples

if TYPE_CHECKING:
    from ..fast.quantize.quantization_report import QuantizationReport

EXAMPLES = (
    "glassformer quantize tiny-stories out/stories-int8 --bits 8",
    "glassformer quantize out/mine out/mine-int4 --bits 4 --calibrate notes.txt --picture harm.svg",
    "glassformer quantize out/pair out/pair-int8 --bits 8 --calibrate valid.en --target valid.de",
)
EPILOG = "FOLDER/quantization.json keeps the report. docs/quantize.md explains it."
REPORT = "quantization.json"


def run(
    model: str,
    folder: str,
    *,
    bits: int,
    group: int = 32,
    head: int = 8,
    calibrate: str | None = None,
    target: str | None = None,
    tokens: Count = 16_384,
    measure: Count = 2_048,
    dtype: str | None = None,
    top: Whole = 12,
    picture: Path | None = None,
    use: Words = (),
) -> CommandOutput:
    """Quantizes a model's weights to 8 or 4 bits, and measures the loss.

    folder FOLDER: where to save it
    bits N: bits of each weight: 8 or 4
    group N: weights that share a scale: a multiple of 32 (32)
    head N: bits of embeddings and head: 8, or 16 for no change (8)
    calibrate DATA: a text for calibration and measurement: a file, a folder or a corpus
    target FILE: for an encoder-decoder: the targets of --calibrate, line by line
    tokens N: tokens of that text for calibration
    measure N: tokens of that text held out for measurement
    dtype D: dtype of all other weights: float32, bfloat16 or float16 (the checkpoint's own)
    top N: matrices to show, largest loss first
    picture FILE: draw the loss of each matrix, as .svg or .png
    json: the whole report as JSON
    """
    from ..fast.quantize import picture as draw

    image = None if picture is None else new_file(picture, model, calibrate, target)
    need(
        image is None or image.suffix in (".svg", ".png"),
        f"--picture {picture} is neither .svg nor .png; name one.",
    )
    drawn = image is None or importlib.util.find_spec("matplotlib") is not None
    need(drawn, "--picture needs matplotlib; pip install matplotlib, or leave it out.")
    report = quantize(
        model,
        folder,
        bits=bits,
        group=group,
        head=head,
        calibrate=calibrate,
        target=target,
        tokens=tokens,
        measure=measure,
        dtype=dtype,
    )
    if image is not None:
        page = io.BytesIO()
        draw(report).savefig(page, format=image.suffix[1:])
        files.write(image, page.getvalue())

    def lines() -> Iterator[str]:
        yield from report_lines(report, top)
        yield (
            f"\n{folder}: {report.before / 1e6:,.2f} MB of {report.dtype} became "
            f"{report.after / 1e6:,.2f} MB."
        )
        if image is not None:
            yield f"{image}: the harm of each matrix, layer by layer."
        if calibrate is None:
            better = ", and 4 bits are rounded for it" if bits == 4 else ""
            yield (
                "These are the weights' own errors. --calibrate DATA, a text, adds what becomes "
                f"of the answers{better}."
            )

    return CommandOutput(report.to_dict, lines)


def quantize(
    model: str,
    folder: str,
    *,
    bits: int,
    group: int = 32,
    head: int = 8,
    calibrate: str | None = None,
    target: str | None = None,
    tokens: int = 16_384,
    measure: int = 2_048,
    dtype: str | None = None,
) -> QuantizationReport:
    """Rounds a model's weights to 8 or 4 bits, saves it, and measures what that costs.

    Args:
        model: A folder or a hub name.
        folder: The folder to write.
        bits: 8 or 4, of each weight.
        group: Weights that share a scale, a multiple of 32.
        head: Bits of embeddings and head: 8, or 16 to leave them.
        calibrate: A text to round for and to measure on: a file, a folder or a named corpus.
        target: Of an encoder-decoder, the file with what it is to write for ``calibrate``.
        tokens: Tokens of the text to round for.
        measure: Tokens of the text, held out, to measure on.
        dtype: The dtype of everything else; None is the checkpoint's own.

    Returns:
        The error of each matrix, and with ``calibrate`` what becomes of the model's answers.

    Raises:
        UserError: The model is quantized already, or a file cannot be read or written.

    Example:
        >>> print(glassformer.quantize("out/mine", "out/mine-int8", bits=8))
    """
    from ..fast.quantize import quantize_model
    from ..fast.quantized import QuantizedLayout, quantized
    from ..formats import store
    from ..formats.checkpoint import Checkpoint

    layout = QuantizedLayout(bits, group, head)
    need(
        target is None or calibrate is not None,
        "--target goes with --calibrate, which has its sources.",
    )
    out, opened = new_folder(folder), Checkpoint.open(model)
    already = f"{model} is quantized already; give the model that it was made of."
    need(opened.quantization is None, already)
    need(
        opened.base is None or Checkpoint.open(opened.base).quantization is None,
        (f"{model} is an adapter on quantized weights; give a model that is not quantized."),
    )
    note_untrained(model)
    tokenizer, text = opened.tokenizer(), None
    if calibrate is not None:
        need(
            tokenizer is not None,
            f"{model} has no tokenizer, so it cannot read a text; leave --calibrate out.",
        )
        need(
            target is None or opened.config.has_source,
            f"{model} is no encoder-decoder; leave --target out.",
        )
        text = _read(calibrate, target, opened.config, tokenizer, tokens, measure)
    net = opened.model(dtype=dtype)
    need(not quantized(net), already)  # a GGUF file's codes
    report_progress = _progress(text is not None)
    report = quantize_model(net, layout, text, name=model, progress=report_progress)
    report_progress("")
    written = json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n"
    store.save(net, out, tokenizer, beside={REPORT: written})
    short = sum(row.shape[-1] < group for row in report.rows)
    if short:
        note(
            f"{short} of {len(report.rows)} matrices have rows shorter than a group of "
            f"{group}, so each of their rows has one scale."
        )
    return report


def _read(
    data: str, target: str | None, cfg: Any, tokenizer: Any, tokens: int, measure: int
) -> Any:
    """The text of --calibrate as the model reads it, and with --target in pairs."""
    from ..fast.quantize import Text

    if target is None:
        from ..formats.data import find, tokenise

        return Text.of(tokenise(find(data), tokenizer), cfg, tokens, measure)
    from ..tasks.encoded import encode
    from ..tasks.objectives import Seq2Seq

    objective = Seq2Seq()
    table = read_examples(data, target, objective, None)
    encoded = encode(
        table, tokenizer, objective, cfg, cfg.context, "end", tokenizer.source_tokenizer
    )
    targets, sources = (
        side.rows(name) for side, name in zip(encoded.sides, ("tokens", "source"), strict=True)
    )
    return Text.of_pairs(list(zip(sources, targets, strict=True)), tokens, measure)


def report_lines(report: Any, top: int) -> Iterator[str]:
    """Yields the matrices by their harm, the roundings of all, and what the columns mean."""
    from ..fast.quantize import display

    total = len(report.rows)
    shown = f"{top} of {total}; --top N shows more" if top < total else f"all {total}"
    has_effects = any(row.effect for row in report.rows)
    order = "the most harmful first" if has_effects else "the greatest error first"
    yield f"Each matrix alone, {order} ({shown}):"
    heading, *rows = display.matrices(report, top)
    yield from text_table.lines(rows, heading)
    yield "\nAll of them, by how they were rounded (the last is kept):"
    heading, *rows = display.wholes(report)
    yield from text_table.lines(rows, heading)
    yield ""
    yield from text_table.lines(display.legend(report), left_columns=(0, 1))


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
