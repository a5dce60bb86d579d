"""One HTML file with a text under several tokenizers; it needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..labels import visible
from .compare import BYTES, UNKNOWN, Sheet, Token, counted
from .display import steps
from .segmentation import WordTrace

GROUNDS = ("#cfe6f7", "#ffe3b0")
"""Blue and orange, one after the other: told apart by every kind of sight, and by their borders
without colour."""
STYLE = f"""
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em;
       color: #111; background: #fff }}
h2 {{ margin: 1.5em 0 .3em }} table {{ border-collapse: collapse }} pre {{ white-space: pre-wrap }}
th, td {{ border: 1px solid #bbb; padding: .2em .6em; text-align: left; vertical-align: top }}
td.number {{ text-align: right }}
.tokens {{ font-family: ui-monospace, monospace; line-height: 2.1 }}
.token {{ background: {GROUNDS[0]}; border: 1px solid #555; border-radius: 3px; padding: 1px 2px; white-space: pre;
         display: inline-block; vertical-align: top; line-height: 1.4 }}
.token.odd {{ background: {GROUNDS[1]} }}
.{UNKNOWN} {{ border: 2px solid #000; font-weight: bold }} .{BYTES} {{ font-style: italic; border-style: dashed }}
.token small {{ display: none; color: #333; font-size: 70% }}
#ids:checked ~ section .token small {{ display: block }}
"""


def page(
    text: str, sheets: Sequence[Sheet], traces: Sequence[Sequence[WordTrace]], ids: bool = False
) -> str:
    """The page's HTML; ``traces`` holds those of each sheet, or none; ``ids`` shows them from the
    start."""
    rows = "\n".join(_row(sheet) for sheet in sheets)
    does = (
        escape(sheet.name) + "".join(f"<td>{escape(habit)}" for habit in sheet.habits.values())
        for sheet in sheets
    )
    habits = "\n".join(f"<tr><td>{cells}</tr>" for cells in does)
    sections = "\n".join(
        _section(sheet, traces[at] if traces else ()) for at, sheet in enumerate(sheets)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Tokens</title><style>{STYLE}</style></head><body>
<h1>One text, {len(sheets)} tokenizer{"" if len(sheets) == 1 else "s"}</h1>
<pre>{escape(text)}</pre>
<input type="checkbox" id="ids"{" checked" if ids else ""}> <label for="ids">ids under the tokens</label>
<section><table>
<tr><th>tokenizer<th>algorithm<th>entries<th>base<th>special<th>added<th>tokens<th>characters a token</tr>
{rows}
</table></section>
{sections}
<section><h2>What each does with</h2><table>
<tr><th>tokenizer{"".join(f"<th>{escape(topic)}" for topic in sheets[0].habits)}</tr>
{habits}
</table></section>
<p>· is a space, → a tab, ↵ a new line. A dashed border: bytes; a heavy one: unknown.</p>
</body></html>
"""


def _row(sheet: Sheet) -> str:
    vocabulary = sheet.vocabulary
    numbers = (
        vocabulary.entries,
        vocabulary.base,
        vocabulary.special,
        vocabulary.added,
        len(sheet.tokens),
    )
    cells = "".join(f'<td class="number">{number:,}' for number in numbers)
    ratio = f'<td class="number">{sheet.characters_per_token:.2f}'
    return f"<tr><td>{escape(sheet.name)}<td>{escape(sheet.algorithm)}{cells}{ratio}</tr>"


def _section(sheet: Sheet, traces: Iterable[WordTrace]) -> str:
    tokens = "".join(_token(token, at) for at, token in enumerate(sheet.tokens))
    body = (
        f"<p>{escape(sheet.refused)}</p>"
        if sheet.refused
        else f'<div class="tokens">{tokens}</div>'
    )
    specials = " ".join(map(escape, sheet.specials[:12])) + (
        " ..." if len(sheet.specials) > 12 else ""
    )
    steps_html = "".join(
        f"<pre>{escape(line)}</pre>" for trace in traces for line in ["\n".join(steps(trace))]
    )
    head = (
        f"<h2>{escape(sheet.name)}</h2><p>{counted(len(sheet.tokens))}; special: "
        f"{specials or 'none'}</p>"
    )
    return f"<section>{head}{body}{steps_html}</section>"


def _token(token: Token, at: int) -> str:
    kinds = f"token {token.kind}" + (" odd" if at % 2 else "")
    title = escape(f"{token.name} ({token.id}), characters {token.start} to {token.end}")
    line = "<br>" if token.shown.endswith("\n") else ""
    return (
        f'<span class="{kinds}" '
        f'title="{title}">{escape(visible(token.shown))}<small>{token.id}</small></span>{line}'
    )
