"""Pages whose numbers are computed when the site is built: cells of Python, values in the text,
live traces.

    ```{computed}            runs, shows the code and what it gives; a page whose code fails does not build
    :code: folded            shown (the default), folded, or hidden
    ```
    {value}`share:.1%`       an expression's value in the middle of a sentence

What needs the data folder stands recorded in docs/cells.json, and takes the place of a cell that
finds no folder, marked as recorded. A changed cell is recorded anew by
``python docs/_ext/computed.py``, with the folder at hand.

All cells of a page share one namespace, in which ``glassformer``, ``torch`` and the site's own
``prelude`` stand. Its numbers are its own, drawn from the same seed whatever was read before it:
several processes may read pages.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import re
import traceback
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.parallel import make_chunks

DOCS = Path(__file__).parents[1]
CELLS = DOCS / "cells.json"


class Note:
    """What stands where something could not be computed."""

    def __init__(self, told: str) -> None:
        self.told = told

    def _repr_html_(self) -> str:
        return f'<p class="absent">{html.escape(self.told)}</p>'


class Stored:
    """What a cell gave when the data folder was at hand."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def _repr_html_(self) -> str:
        mark = (
            "Recorded: this, and the values in the text that come of it, were computed with the "
            "data folder, which this build does not have."
        )
        return f'{self.shown}<p class="recorded">{mark}</p>'


class Pages:
    """The namespaces of the pages that were read, and how their code is run."""

    def __init__(self, data: bool = True) -> None:
        self.data = data  # False: as on a machine without the data folder
        self.spaces: dict[str, dict[str, Any]] = {}
        self.absent: dict[str, str] = {}  # what a page needs and did not find
        self.missed: dict[str, list[str]] = {}  # the cells of a page that need what is absent
        text = CELLS.read_text(encoding="utf-8") if CELLS.exists() else "{}"
        self.stored: dict[str, dict[str, str]] = json.loads(text)

    def space(self, page: str) -> dict[str, Any]:
        """What the cells of a page share; begun with the prelude."""
        if page not in self.spaces:
            import prelude

            prelude.seed()
            space = {name: getattr(prelude, name) for name in prelude.__all__}
            if not self.data:
                space |= dict.fromkeys(("data", "pretrained", "tokenizer_of"), prelude.refuse)
            self.spaces[page] = space
        return self.spaces[page]

    def run(self, page: str, code: str, where: str) -> tuple[str, Any]:
        """What a cell prints, and the value of its last expression (None where it ends in none)."""
        space, printed = self.space(page), io.StringIO()
        try:
            tree = ast.parse(code, where)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, where, "exec"), space)
                value = None
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), where, "eval"), space)
        except Exception as error:
            if type(error).__name__ == "Absent":
                self.absent[page] = str(error)
            # a missing name comes of a cell that was not computed
            elif not (isinstance(error, NameError) and page in self.absent):
                raise ExtensionError(f"{where} fails:\n{code}\n{traceback.format_exc()}") from error
            self.missed.setdefault(page, []).append(code)
            shown = self.stored.get(Path(page).stem, {}).get(code)
            if shown is not None:
                return "", Stored(shown)
            return "", Note(f"Not computed in this build: it needs {self.absent[page]}.")
        return printed.getvalue(), value

    def value(self, page: str, text: str, where: str) -> str:
        """An expression's value, formatted as an f-string would."""
        _, said = self.run(page, as_code(text), where)
        if isinstance(said, Stored):
            return said.shown
        return "(not computed in this build)" if isinstance(said, Note) else str(said)


def as_code(text: str) -> str:
    """What a value in a sentence runs: an f-string."""
    return f"f{'{' + text + '}'!r}"


pages = Pages()

CELL = re.compile(
    r"```\{computed\}\n(?::[^\n]*\n)*(?P<code>.*?)\n```|\{value\}`(?P<value>[^`]+)`|```\{live\} "
    r"(?P<live>[^\n]*)",
    re.S,
)


def computed_text(path: Path) -> str:
    """What the cells and values of a page give, one after another, without traces, trainings and
    what needs them."""
    page, said = str(path), list[str]()
    for found in CELL.finditer(path.read_text(encoding="utf-8")):
        if found["live"] or "trained(" in (found["code"] or ""):
            pages.absent[page] = "a training"
            continue
        if found["value"] is not None:
            said.append(pages.value(page, found["value"], page))
            continue
        printed, value = pages.run(page, found["code"], page)
        rich = getattr(value, "_repr_html_", None)
        said += (
            [printed, re.sub("<[^>]+>", " ", rich())]
            if rich
            else [printed, "" if value is None else str(value)]
        )
    return "\n".join(filter(None, said))


def store(path: Path) -> dict[str, str]:
    """What the cells of a page give that need the data folder: code -> HTML, or a value's text."""
    page, bare, full = path.stem, Pages(data=False), Pages()
    made: dict[str, str] = {}
    for found in CELL.finditer(path.read_text(encoding="utf-8")):
        code = as_code(found["value"]) if found["value"] else found["code"] or ""
        # a training, and what comes of it, needs no folder
        if found["live"] or "trained(" in code:
            continue
        with contextlib.suppress(ExtensionError):
            bare.run(page, code, page)
            _, value = full.run(page, code, page)
            if code in bare.missed.get(page, ()) and value is not None:
                rich = getattr(value, "_repr_html_", None)
                made[code] = rich() if rich else str(value)
    return made


def main() -> None:
    """Store every page of the course."""
    stored = {path.stem: store(path) for path in sorted((DOCS / "learn").glob("*.md"))}
    text = json.dumps({page: cells for page, cells in stored.items() if cells}, indent=1)
    CELLS.write_text(f"{text}\n", encoding="utf-8")


def page_of(directive: Directive) -> str:
    """The name of the page on which a directive stands."""
    page: str = directive.state.document.settings.env.docname
    return page


def shown(value: Any) -> list[nodes.Node]:
    """A value as the page shows it: its own HTML, or its repr."""
    if value is None:
        return []
    rich = getattr(value, "_repr_html_", None)
    if rich is not None:
        # a box that scrolls, by the keyboard too
        made = re.sub(r"^<div style=", '<div tabindex="0" style=', rich())
        return [nodes.raw("", f'<div class="shown">{made}</div>', format="html")]
    text = value if isinstance(value, str) else repr(value)
    return [nodes.literal_block(text, text, language="text", classes=["result"])]


class Computed(Directive):
    """A cell: Python that runs, with what it prints and gives below it."""

    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "code": lambda word: directives.choice(word, ("shown", "folded", "hidden"))
    }

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        printed, value = pages.run(page_of(self), code, f"{page_of(self)}, line {self.lineno}")
        made: list[nodes.Node] = []
        how = self.options.get("code", "shown")
        block = nodes.literal_block(code, code, language="python")
        if how == "shown":
            made.append(block)
        elif how == "folded":
            made += [
                nodes.raw(
                    "",
                    "<details class='code'><summary>The code that computes this</summary>",
                    format="html",
                ),
                block,
                nodes.raw("", "</details>", format="html"),
            ]
        if printed.strip():
            made.append(
                nodes.literal_block(
                    printed, printed.rstrip("\n"), language="text", classes=["result"]
                )
            )
        return made + shown(value)


def _value(
    name: str, raw: str, text: str, line: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[Any]]:
    from prelude import spaced

    page: str = inliner.document.settings.env.docname
    said = spaced(pages.value(page, text, f"{page}, line {line}"))
    return [nodes.inline(said, said, classes=["value"])], []


def steps(path: Path) -> int:
    """About how much of a page is trained, which is what takes time."""
    return sum(map(int, re.findall(r"steps=(\d+)", path.read_text(encoding="utf-8"))))


def dealt(app: Sphinx, env: Any, names: list[str]) -> None:
    """Several processes read: torch and what many pages ask for is there once, and pages that
    compute lie apart."""
    if app.parallel < 2 or len(names) < 2 * app.parallel:
        return
    import prelude

    prelude.lesson()
    prelude.small()
    names.sort(key=lambda name: (-steps(Path(env.doc2path(name))), name))
    count = len(make_chunks(names, app.parallel))  # neighbours are read by one process
    names[:] = [name for first in range(count) for name in names[first::count]]


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.add_directive("computed", Computed)
    app.add_role("value", _value)
    app.connect("env-before-read-docs", dealt)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    main()
