"""Our own source beside the site: each file that a page points to, with an address for each line."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer
from sphinx.application import Sphinx

import glassformer

PACKAGE = Path(glassformer.__file__).parent
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><link rel="stylesheet" href="{up}_static/pygments.css">
<link rel="stylesheet" href="{up}_static/site.css">
</head><body data-theme="auto" class="source"><main><h1>{title}</h1><p><a href="{up}index.html">Glassformer</a></p>
{code}</main></body></html>
"""


def link(app: Sphinx, page: str, file: str, line: int, text: str = "") -> nodes.reference:
    """A link from a page to a line of ``glassformer/file`` (a path in the package)."""
    _asked.add(file)
    uri = f"{'../' * page.count('/')}source/{file}.html#L-{line}"
    return nodes.reference("", "", nodes.literal("", text or f"glassformer/{file}:{line}"), refuri=uri)


_asked: set[str] = set()


def write(app: Sphinx, error: Exception | None) -> None:
    """The files that were pointed to."""
    if error or app.builder.format != "html":
        return
    for file in sorted(_asked):
        up = "../" * (file.count("/") + 1)
        code = (PACKAGE / file).read_text(encoding="utf-8")
        made = highlight(
            code, TextLexer(), HtmlFormatter(lineanchors="L", wrapcode=True)
        )  # colours: four times the bytes
        target = Path(app.outdir) / "source" / f"{file}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = PAGE.format(title=html.escape(f"glassformer/{file}"), up=up, code=made)
        target.write_text(whole.replace("<pre>", '<pre tabindex="0">'), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    _asked.clear()
    app.connect("build-finished", write)
    return {"parallel_read_safe": False}
