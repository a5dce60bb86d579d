"""``glassformer tokens``: a text under several tokenizers side by side; training one; the trade-off
of its size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, need, note
from .common import CommandOutput
from .options import Separator
from .signature import Words

if TYPE_CHECKING:
    from rich.console import Console

    from ..sight.tokens.compare import Sheet, Token

EXAMPLES = (
    'glassformer tokens "Once upon a time" --with gpt2 t5',
    "glassformer tokens train corpus.txt --kind bpe --size 4096 --out tokenizer",
)
USAGE = """glassformer tokens ["TEXT"] [--with NAME|PATH ...] [--ids] [--trace [WORD]] [--html FILE] [--json]
       glassformer tokens train FILE ... --kind KIND [--size N] --out DIR
       glassformer tokens sizes FILE ... [--kind KIND] [--sizes N ...] [--dim N] [--out FILE]"""
EPILOG = (
    'The words "train" and "sizes" themselves are tokenised by --text train; - reads '
    "standard input."
)
DEFAULT = ("gpt2", "bert-cased", "t5")  # one of each algorithm
GROUNDS = ("black on #cfe6f7", "black on #ffe3b0")
MARKS = {"piece": "", "bytes": " italic", "unknown": " bold underline"}
MOST_SPECIALS = 6


def run(
    words: Words = (),
    *,
    text: str | None = None,
    file: Path | None = None,
    with_: list[str] | None = None,
    ids: bool = False,
    trace: str | None = None,
    html: Path | None = None,
    kind: str | None = None,
    size: int | None = None,
    special: Words = (),
    separator: Separator | None = None,
    sizes: list[int] | None = None,
    dim: int | None = None,
    out: Path | None = None,
) -> CommandOutput | None:
    """Shows a text under several tokenizers, trains a tokenizer, or measures vocabulary sizes.

    words TEXT: the text; a sample of everything where there is none

    to look
    text TEXT: the text, whatever it is
    file FILE: the text in a file
    with_ NAME: tokenizers: names, files, folders
    ids: ids under the tokens
    trace [WORD]: how a word, or each one, came to its pieces
    html FILE: write a page that needs no network
    json: everything as JSON

    to train, and to find a size
    kind KIND: bpe, wordpiece, unigram, char, byte or words (bpe)
    size N: train: entries in all
    special NAME: train: a special token besides the usual ones; nothing is learnt across it; may be
        repeated
    separator TEXT: what parts a plain file's documents (nothing)
    sizes N: sizes: entries in all, several
    dim N: sizes: width of the embedding (512)
    out PATH: train: a folder; sizes: a .png or .svg file
    """
    verb, *names = words or [""]
    if text is None and verb in ("train", "sizes"):
        from . import vocabularies

        look_options = {"text": text, "file": file, "with": with_, "ids": ids}
        _refuse_options(verb, **look_options, trace=trace, html=html)
        if verb == "train":
            return vocabularies.train(names, kind, size, out, special, separator)
        return vocabularies.sizes(names, kind, sizes, out, dim, separator)
    _refuse_options(
        "looking at a text",
        kind=kind,
        size=size,
        sizes=sizes,
        dim=dim,
        out=out,
        special=special,
        separator=separator,
    )
    inputs = [*words, *(source for source in (text, file) if source is not None)]
    need(len(inputs) <= 1, "Give one text, in quotes; or a FILE by --file.")
    return _look(_read_text(inputs, trace), with_, ids, trace, html)


def _refuse_options(purpose: str, **options: Any) -> None:
    """Refuse options that belong to another use of the command."""
    for name, value in options.items():
        if value not in (None, False, (), []):
            raise UserError(
                f"--{name} does not belong to {purpose}; see glassformer tokens --help."
            )


def _read_text(inputs: Sequence[str | Path], trace: str | None) -> str:
    """Returns the text that is named, the word that is traced, or a sample."""
    from ..sight.tokens.compare import SAMPLE

    (source,) = inputs or [trace or SAMPLE]
    if isinstance(source, Path):
        try:
            return _decoded(source.read_bytes(), str(source))
        except OSError as error:
            raise UserError(
                f"{source} cannot be read ({error.strerror}); check the path."
            ) from None
    if source == "-":
        return _decoded(sys.stdin.buffer.read(), "Standard input")
    return source


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start}); convert it.") from None


def _tokenizer_source(name: str) -> str | Path:
    """A run folder's checkpoint, where its tokenizer lies; any other name as it is."""
    from ..formats import pretrained, resolve

    return (
        resolve.checkpoint_folder(Path(name))
        if name not in pretrained.KNOWN and Path(name).is_dir()
        else name
    )


def _look(
    text: str, chosen: list[str] | None, ids: bool, trace_word: str | None, page: Path | None
) -> CommandOutput:
    from ..core import files
    from ..formats import pretrained
    from ..sight.tokens import compare, html
    from ..sight.tokens.segmentation import WordTrace, trace

    compare.check(text)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html {page} is no .html; give a name that ends in it.")
    names = (
        chosen
        or [name for name in DEFAULT if name in pretrained.local_names()]
        or list(DEFAULT[:1])
    )
    opened = [(name, pretrained.find(_tokenizer_source(name))) for name in dict.fromkeys(names)]
    sheets = [compare.sheet(name, tokenizer, text) for name, tokenizer in opened]
    traces: list[list[WordTrace]] = []
    if trace_word is not None:
        word_traces = [trace(tokenizer, trace_word or text) for _, tokenizer in opened]
        traces = [
            list({word.word: word for word in words}.values()) for words in word_traces
        ]  # each word once
    if page is not None:
        files.write(page, html.page(text, sheets, traces, ids))
    records = [sheet.to_dict() for sheet in sheets]
    for record, trace_records in zip(records, traces, strict=False):
        record["trace"] = [word.to_dict() for word in trace_records]

    def lines() -> list[str]:
        if page is not None:
            return [str(page)]
        _draw(sheets, traces, ids)
        return []

    if not chosen and len(names) < len(DEFAULT):
        note("More tokenizers: --with NAME, from GLASSFORMER_DATA or the hub's cache.")
    return CommandOutput({"text": text, "tokenizers": records}, lines)


# ---------------------------------------------------------------------------------- in a terminal


def _draw(sheets: list[Sheet], traces: list[list[Any]], ids: bool) -> None:
    from rich.console import Console

    from ..sight.tokens.display import steps

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    plain = console.color_system is None or console.no_color
    _counts(console, sheets)
    for at, sheet in enumerate(sheets):
        console.print(f"\n{sheet.name}", style="bold", end="")
        console.print(f"  {sheet.algorithm}; special: {_specials(sheet)}", style="dim")
        if sheet.refused:
            console.print(f"  {sheet.refused}")
        elif ids:
            _cells(console, sheet.tokens, plain)
        else:
            _row(console, sheet.tokens, plain)
        for trace in traces[at] if traces else ():
            console.print()
            console.print("\n".join(f"  {line}" for line in steps(trace)))
    console.print("\n· space  → tab  ↵ new line  <0xE9> bytes", style="dim")
    wide = max(len(sheet.name) for sheet in sheets)
    for topic in sheets[0].habits:
        console.print(f"\n{topic}", style="bold")
        for sheet in sheets:
            console.print(f"  {sheet.name:<{wide}}  {sheet.habits[topic]}")


def _counts(console: Console, sheets: list[Sheet]) -> None:
    """The table of what is counted."""
    wide = max(len(sheet.name) for sheet in sheets)
    titles = ("entries", "= base", "+ special", "+ added", "tokens", "chars/token")
    console.print(" " * wide + "".join(f"  {title:>9}" for title in titles), style="bold")
    for sheet in sheets:
        vocabulary = sheet.vocabulary
        numbers = (
            vocabulary.entries,
            vocabulary.base,
            vocabulary.special,
            vocabulary.added,
            len(sheet.tokens),
        )
        cells = "".join(f"  {number:>9,}" for number in numbers)
        console.print(f"{sheet.name:<{wide}}{cells}  {sheet.characters_per_token:>11.2f}")


def _specials(sheet: Sheet) -> str:
    """The special tokens, or the first of them."""
    more = len(sheet.specials) - MOST_SPECIALS
    return (
        " ".join(sheet.specials[:MOST_SPECIALS]) + (f" and {more} more" if more > 0 else "")
        or "none"
    )


def _row(console: Console, tokens: tuple[Token, ...], plain: bool) -> None:
    """The tokens as a text, on grounds that alternate, or between bars where there is no colour."""
    from rich.text import Text

    from ..sight.labels import visible

    line = Text("|" if plain else "")
    for at, token in enumerate(tokens):
        line.append(visible(token.shown), None if plain else GROUNDS[at % 2] + MARKS[token.kind])
        line.append("|" if plain else "")
        if token.shown.endswith("\n"):
            console.print(line)
            line = Text("|" if plain else "")
    if line.plain.strip("|"):
        console.print(line)


def _cells(console: Console, tokens: tuple[Token, ...], plain: bool) -> None:
    """The tokens with their ids below them, in columns."""
    from rich.cells import cell_len
    from rich.text import Text

    from ..sight.labels import visible

    above, below, column = Text(), Text(), 0
    for at, token in enumerate(tokens):
        piece, id = visible(token.shown), str(token.id)
        wide = max(cell_len(piece), len(id))
        if column and column + wide + 1 > console.width:
            console.print(above)
            console.print(below)
            above, below, column = Text(), Text(), 0
        above.append(
            piece + " " * (wide - cell_len(piece)),
            None if plain else GROUNDS[at % 2] + MARKS[token.kind],
        )
        above.append("|" if plain else " ")
        below.append(f"{id:<{wide}}{'|' if plain else ' '}")
        column += wide + 1
    console.print(above)
    console.print(below)
