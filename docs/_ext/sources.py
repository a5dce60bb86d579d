"""Our own source beside the site: each file that a page points to, with an address for each
line."""

from __future__ import annotations

import html
import re
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
    pointed_to(app.env).setdefault(page, set()).add(file)
    uri = f"{'../' * page.count('/')}source/{file}.html#L-{line}"
    return nodes.reference(
        "", "", nodes.literal("", text or f"glassformer/{file}:{line}"), refuri=uri
    )


def pointed_to(env: Any) -> dict[str, set[str]]:
    """The files that each page points to; several processes read pages, and each has its own
    environment."""
    if not hasattr(env, "glassformer_sources"):
        env.glassformer_sources = {}
    found: dict[str, set[str]] = env.glassformer_sources
    return found


def merge(app: Sphinx, env: Any, pages: set[str], other: Any) -> None:
    """What another process's pages point to."""
    pointed_to(env).update(
        {page: files for page, files in pointed_to(other).items() if page in pages}
    )


def write(app: Sphinx, error: Exception | None) -> None:
    """The files that were pointed to."""
    if error or app.builder.format != "html":
        return
    for file in sorted(set().union(*pointed_to(app.env).values())):
        up = "../" * (file.count("/") + 1)
        code = (PACKAGE / file).read_text(encoding="utf-8")
        made = highlight(
            code, TextLexer(), HtmlFormatter(lineanchors="L", wrapcode=True)
        )  # colours: four times the bytes
        target = Path(app.outdir) / "source" / f"{file}.html"
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = PAGE.format(title=html.escape(f"glassformer/{file}"), up=up, code=made)
        # places, no links without a name
        whole = re.sub(r'<a id="(L-\d+)"[^>]*></a>', r'<a id="\1"></a>', whole)
        target.write_text(whole.replace("<pre>", '<pre tabindex="0">'), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.connect("env-purge-doc", lambda app, env, page: pointed_to(env).pop(page, None))
    app.connect("env-merge-info", merge)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
