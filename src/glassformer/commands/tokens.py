"""``glassformer tokens``: a text under several tokenizers side by side; training one; the trade-off
of its size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError, need, note
from .common import text_table
from .options import standard_input
from .parsing import CommandOutput, Words
from .sources import read_file
from .vocabularies import sizes, train

if TYPE_CHECKING:
    from rich.console import Console

    from ..sight.tokens.comparison import Sheet, Token
    from ..sight.tokens.segmentation import WordTrace

EXAMPLES = (
    'glassformer tokens "Once upon a time" --with gpt2 t5',
    "glassformer tokens train corpus.txt --kind bpe --size 4096 --out tokenizer",
    "glassformer tokens sizes corpus.txt --sizes 1024 4096 16384",
)
USAGE = """glassformer tokens ["TEXT"] [--with NAME|PATH ...] [--ids] [--trace [WORD]] [--html FILE] [--json]
       glassformer tokens train FILE ... --kind KIND [--size N] --out DIR
       glassformer tokens sizes FILE ... [--kind KIND] [--sizes N ...] [--dim N]"""
EPILOG = (
    'The words "train" and "sizes" themselves are tokenised by --text train; - reads '
    "standard input."
)
DEFAULT = ("gpt2", "bert-cased", "t5")  # one of each algorithm
GROUNDS = ("black on #cfe6f7", "black on #ffe3b0")
MARKS = {"piece": "", "bytes": " italic", "unknown": " bold underline"}
MOST_SPECIALS = 6
COUNTED = ("entries", "= base", "+ special", "+ added", "tokens", "chars/token")
PAGE_WIDTH = 140


def run(
    words: Words = (),
    *,
    text: str | None = None,
    file: Path | None = None,
    with_: list[str] | None = None,
    ids: bool = False,
    trace: str | None = None,
    html: Path | None = None,
) -> CommandOutput:
    """Shows a text under several tokenizers.

    words TEXT: the text (a built-in sample)
    text TEXT: the text, even if it is the name of a command
    file FILE: read the text from a file
    with_ NAME: tokenizers to compare: names, files, folders
    ids: show ids under the tokens
    trace [WORD]: show step by step how a word, or each word, is split
    html FILE: write a page that works offline
    json: everything as JSON
    """
    inputs = len(words) + (text is not None) + (file is not None)
    need(inputs <= 1, "Give one text, in quotes; or a FILE by --file.")
    content = next(iter(words), text)
    if file is not None:
        content = read_file(str(file))
    elif content == "-":
        content = standard_input()
    return _look(content, with_, ids, trace, html)


def _look(
    text: str | None, chosen: list[str] | None, ids: bool, trace_word: str | None, page: Path | None
) -> CommandOutput:
    from ..core import files
    from ..formats import pretrained, resolve
    from ..sight.tokens import comparison
    from ..sight.tokens.segmentation import trace

    text = trace_word or comparison.SAMPLE if text is None else text
    comparison.check(text)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--html {page} is no .html; give a name that ends in it.")
    here = [name for name in DEFAULT if name in pretrained.local_names()]
    names = chosen or here or list(DEFAULT[:1])
    sheets, traces = [], []
    for name in dict.fromkeys(names):
        is_run = name not in pretrained.KNOWN and Path(name).is_dir()
        tokenizer = pretrained.find(resolve.checkpoint_folder(Path(name)) if is_run else name)
        sheets.append(comparison.sheet(name, tokenizer, text))
        words = [] if trace_word is None else trace(tokenizer, trace_word or text)
        traces.append(list({word.word: word for word in words}.values()))  # each word once
    records = [sheet.to_dict() for sheet in sheets]
    if trace_word is not None:
        for record, words in zip(records, traces, strict=True):
            record["trace"] = [word.to_dict() for word in words]
    if page is not None:
        paper = _console(file=io.StringIO(), record=True, width=PAGE_WIDTH, force_terminal=True)
        _draw(paper, sheets, traces, ids)
        files.write(page, paper.export_html(inline_styles=True))

    def lines() -> list[str]:
        if page is None:
            _draw(_console(), sheets, traces, ids)
        return [] if page is None else [str(page)]

    if not chosen and len(names) < len(DEFAULT):
        note("More tokenizers: --with NAME, from GLASSFORMER_DATA or the hub's cache.")
    return CommandOutput({"text": text, "tokenizers": records}, lines)


def _console(**settings: Any) -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True, **settings)


def _draw(console: Console, sheets: list[Sheet], traces: list[list[WordTrace]], ids: bool) -> None:
    from ..sight.tokens.steps import steps

    rows = [
        (
            sheet.name,
            *(f"{number:,}" for number in sheet.numbers),
            f"{sheet.characters_per_token:.2f}",
        )
        for sheet in sheets
    ]
    console.print("\n".join(text_table.lines(rows, ("", *COUNTED))))
    for sheet, words in zip(sheets, traces, strict=True):
        more = len(sheet.specials) - MOST_SPECIALS
        specials = " ".join(sheet.specials[:MOST_SPECIALS]) or "none"
        console.print(f"\n{sheet.name}", style="bold", end="")
        specials += f" and {more} more" if more > 0 else ""
        console.print(f"  {sheet.algorithm}; special: {specials}", style="dim")
        if sheet.refused:
            console.print(f"  {sheet.refused}")
        else:
            _draw_tokens(console, sheet.tokens, ids)
        for word in words:
            console.print("\n  " + "\n  ".join(steps(word)))
    console.print("\n· space  ⇥ tab  ↵ new line  <0xE9> bytes", style="dim")
    for topic in sheets[0].habits:
        console.print(f"\n{topic}", style="bold")
        console.print(
            "\n".join(text_table.lines((("", s.name, s.habits[topic]) for s in sheets), (), (1, 2)))
        )


def _draw_tokens(console: Console, tokens: tuple[Token, ...], ids: bool) -> None:
    """The tokens as a text, on grounds that alternate, or between bars where there is no colour;
    or in columns, with their ids below them."""
    from rich.columns import Columns
    from rich.text import Text

    from ..sight.labels import visible

    plain = console.color_system is None or console.no_color
    bar = "|" if plain else ""
    cells, line = [], Text(bar)
    for at, token in enumerate(tokens):
        style = "" if plain else GROUNDS[at % 2] + MARKS[token.kind]
        piece = Text.assemble((visible(token.shown), style), bar)
        cells.append(piece.copy().append(f"\n{token.id}{bar}"))
        line.append_text(piece)
        if token.shown.endswith("\n"):
            line.append("\n" + bar)
    console.print(Columns(cells, padding=(0, 1)) if ids else line)


TASKS = {"train": train, "sizes": sizes}
