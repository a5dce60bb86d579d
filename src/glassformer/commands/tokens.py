"""``glassformer tokens``: a text under several tokenizers side by side; training one; the trade-off
of its size."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, need, note
from .common import print_json, unescape

if TYPE_CHECKING:
    from rich.console import Console

    from ..inspection.tokens.compare import Sheet, Token

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
VERBS = ("train", "sizes")
GROUNDS = ("black on #cfe6f7", "black on #ffe3b0")
MARKS = {"piece": "", "bytes": " italic", "unknown": " bold underline"}
MOST_SPECIALS = 6


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="TEXT",
        help="the text; a sample of everything where there is none",
    )
    show = parser.add_argument_group("to look").add_argument
    show("--text", metavar="TEXT", help="the text, whatever it is")
    show("--file", type=Path, metavar="FILE", help="the text in a file")
    show(
        "--with", nargs="+", dest="names", metavar="NAME", help="tokenizers: names, files, folders"
    )
    show("--ids", action="store_true", help="ids under the tokens")
    show(
        "--trace",
        nargs="?",
        const="",
        metavar="WORD",
        help="how a word, or each one, came to its pieces",
    )
    show("--html", type=Path, metavar="FILE", help="write a page that needs no network")
    show("--json", action="store_true", help="everything as JSON")
    make = parser.add_argument_group("to train, and to find a size").add_argument
    make("--kind", metavar="KIND", help="bpe, wordpiece, unigram, char, byte or words (bpe)")
    make("--size", type=int, metavar="N", help="train: entries in all")
    make(
        "--special",
        action="append",
        default=[],
        metavar="NAME",
        help="train: a special token besides the usual ones; nothing is learnt across it; may be "
        "repeated",
    )
    make(
        "--separator",
        type=unescape,
        metavar="TEXT",
        help="what parts a plain file's documents (nothing)",
    )
    make("--sizes", type=int, nargs="+", metavar="N", help="sizes: entries in all, several")
    make("--dim", type=int, metavar="N", help="sizes: width of the embedding (512)")
    make("--out", type=Path, metavar="PATH", help="train: a folder; sizes: a .png or .svg file")


def run(args: argparse.Namespace) -> None:
    verb = args.words[0] if args.words and args.text is None else None
    if verb in VERBS:
        from . import vocabularies

        _refuse_options(args, verb, "text", "file", "names", "ids", "trace", "html")
        vocabularies.VERBS[verb](args, args.words[1:])
        return
    _refuse_options(
        args, "looking at a text", "kind", "size", "sizes", "dim", "out", "special", "separator"
    )
    _look(args, _text(args))


def _refuse_options(args: argparse.Namespace, purpose: str, *names: str) -> None:
    """Refuse options that belong to another use of the command."""
    for option in names:
        if getattr(args, option) not in (None, False, []):
            name = "with" if option == "names" else option
            raise UserError(
                f"--{name} does not belong to {purpose}; see glassformer tokens --help."
            )


def _text(args: argparse.Namespace) -> str:
    """The one text that is meant."""
    from ..inspection.tokens.compare import SAMPLE

    inputs = [*args.words, *(option for option in (args.text, args.file) if option is not None)]
    need(len(inputs) <= 1, "Give one text, in quotes; or a FILE by --file.")
    if args.file is not None:
        try:
            return _decoded(args.file.read_bytes(), str(args.file))
        except OSError as error:
            raise UserError(
                f"{args.file} cannot be read ({error.strerror}); check the path."
            ) from None
    if args.words == ["-"]:
        return _decoded(sys.stdin.buffer.read(), "Standard input")
    if not inputs and args.trace:
        return str(args.trace)
    return str(inputs[0]) if inputs else SAMPLE


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{source} is not UTF-8 text (byte {error.start}); convert it.") from None


def _tokenizer_source(name: str) -> str | Path:
    """A run folder's checkpoint, where its tokenizer lies; any other name as it is."""
    from ..checkpoints import resolve
    from ..tokenizer import pretrained

    return (
        resolve.checkpoint_folder(Path(name))
        if name not in pretrained.KNOWN and Path(name).is_dir()
        else name
    )


def _look(args: argparse.Namespace, text: str) -> None:
    from .. import files
    from ..inspection.tokens import compare, html
    from ..inspection.tokens.segmentation import Trace, trace
    from ..tokenizer import pretrained

    compare.check(text)
    if args.html is not None and args.html.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html {args.html} is no .html; give a name that ends in it.")
    names = (
        args.names or [name for name in DEFAULT if name in pretrained.here()] or list(DEFAULT[:1])
    )
    opened = [(name, pretrained.find(_tokenizer_source(name))) for name in dict.fromkeys(names)]
    sheets = [compare.sheet(name, tokenizer, text) for name, tokenizer in opened]
    traces: list[list[Trace]] = []
    if args.trace is not None:
        words = args.trace or text
        word_traces = [trace(tokenizer, words) for _, tokenizer in opened]
        traces = [
            list({word.word: word for word in words}.values()) for words in word_traces
        ]  # each word once
    if args.html is not None:
        files.write(args.html, html.page(text, sheets, traces, args.ids))
    if args.json:
        tables = [sheet.to_dict() for sheet in sheets]
        for record, trace_records in zip(tables, traces, strict=False):
            record["trace"] = [word.to_dict() for word in trace_records]
        print_json({"text": text, "tokenizers": tables})
    elif args.html is not None:
        print(args.html)
    else:
        _draw(sheets, traces, args.ids)
    if not args.names and len(names) < len(DEFAULT):
        note("More tokenizers: --with NAME, from GLASSFORMER_DATA or the hub's cache.")


# ---------------------------------------------------------------------------------- in a terminal


def _draw(sheets: list[Sheet], traces: list[list[Any]], ids: bool) -> None:
    from rich.console import Console

    from ..inspection.tokens.display import steps

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

    from ..tokenizer.labels import visible

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

    from ..tokenizer.labels import visible

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
