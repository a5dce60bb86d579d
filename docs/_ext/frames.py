"""What moves on a page: a trace in the explainer's own page, and its sandbox, in frames without a
server.

    ```{live} trace          a trace on the page of ``glassformer page``, alive without a server
    :view: attention         as a link of the page has it after "#/": a screen, then ?name=value&...
    ```
    ```{sandbox} rope        a card of the explainer's sandbox: softmax, av, mask, pos_sin, rope, sampling
    :start: str("1, 0")      an expression whose value stands in its box at first
    ```

One script and one style serve all frames; a trace that several pages show is one file, named by its
numbers.
"""

from __future__ import annotations

import html
import shutil
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from computed import Note, page_of, pages, shown
from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from glassformer.core import files

FRAME = "width:100%;border:1px solid var(--color-background-border);border-radius:6px"
INLINE = 'src="../_static/glass/inline.js"'
CARDS = {
    "softmax": "Softmax of your own scores",
    "av": "Attention of your own words",
    "mask": "Who may look at whom",
    "pos_sin": "Positions by sine and cosine",
    "rope": "Rotation by position",
    "sampling": "From scores to a token",
}
SANDBOX = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sandbox</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,"><link rel="stylesheet" href="../_static/glass/app.css">
<style>#app{min-height:0}main.sandbox{margin:0;border:0;flex:none}</style></head>
<body><div id="app"><noscript>This needs scripts, all of them from this site.</noscript></div>
<script src="../_static/glass/sandbox.js"></script></body></html>
"""


class Live(Directive):
    """A trace in a frame: the page of ``glassformer page`` with these numbers, one script for the
    whole site."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "view": directives.unchanged,
        "height": directives.positive_int,
        "title": directives.unchanged,
    }
    # a trace by its id, held so that the id stays its own
    written: ClassVar[dict[int, tuple[Any, str]]] = {}

    def run(self) -> list[nodes.Node]:
        page = page_of(self)
        _, trace = pages.run(page, self.arguments[0], f"{page}, line {self.lineno}")
        if isinstance(trace, Note):
            return shown(trace)
        title = self.options.get("title", self.arguments[0])
        if id(trace) not in self.written:
            self.written[id(trace)] = (
                trace,
                written(trace, Path(self.state.document.settings.env.app.outdir) / "live"),
            )
        up = "../" * page.count("/")
        link = f"{up}live/{self.written[id(trace)][1]}#/{self.options.get('view', 'attention')}"
        size = self.options.get("height", 520)
        title = html.escape(title)
        link = html.escape(link)
        frame = (
            f'<iframe loading="lazy" title="{title}" src="{link}" '
            f'style="{FRAME};height:{size}px"></iframe>'
        )
        made = (
            f'<figure class="live">{frame}<figcaption>{title} <a '
            f'href="{link}">alone</a></figcaption>'
        )
        return [nodes.raw("", f"{made}</figure>", format="html")]


def written(trace: Any, folder: Path) -> str:
    """The file of a trace in ``folder``; whichever page or process comes first writes it."""
    from glassformer.sight import export

    name = f"{export.run_id(trace)}.html"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = trace.tokenizer.decode(trace.tokens[0].tolist())
        files.write(folder / name, document(trace, text))
    return name


def document(trace: Any, title: str) -> str:
    """The page that a trace saves, with its script and style taken from the site instead of written
    into each."""
    from glassformer.sight import export

    whole = export.page(trace, title)
    script, style = (
        export.built("inline.js").replace("</script", "<\\/script"),
        export.built("app.css"),
    )
    whole = whole.replace(f"<script>{script}</script>", f"<script {INLINE}></script>")
    whole = whole.replace(
        f"<style>{style}</style>", '<link rel="stylesheet" href="../_static/glass/app.css">'
    )
    if INLINE not in whole or "app.css" not in whole:
        raise ExtensionError(
            "A saved trace is no longer made as the site takes it apart; see export.page."
        )
    # the same promise as the file's own: nothing is fetched; only the script and the style beside
    # it are let in
    return whole.replace(
        "script-src 'unsafe-inline'", "script-src 'self' 'unsafe-inline' file:"
    ).replace("style-src 'unsafe-inline'", "style-src 'self' 'unsafe-inline' file:")


class Sandbox(Directive):
    """A card of the explainer's sandbox, computed in the reader's browser."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "start": directives.unchanged,
        "height": directives.positive_int,
    }

    def run(self) -> list[nodes.Node]:
        page, card = page_of(self), directives.choice(self.arguments[0], tuple(CARDS))
        link = f"{'../' * page.count('/')}live/sandbox.html#{card}"
        if "start" in self.options:
            _, start = pages.run(page, self.options["start"], f"{page}, line {self.lineno}")
            link += f"?v={quote(str(start))}"
        size = self.options.get("height", 300)
        told = (
            f'loading="lazy" class="sandbox" title="{CARDS[card]}" style="{FRAME};height:{size}px"'
        )
        frame = f'<iframe {told} src="{html.escape(link)}"></iframe>'
        said = f"{CARDS[card]}: type your own numbers; your browser computes, as the library does."
        made = f'<figure class="live">{frame}<figcaption>{said}</figcaption></figure>'
        return [nodes.raw("", made, format="html")]


def _glass(app: Sphinx) -> None:
    """The explainer's scripts and style, once for all frames."""
    Live.written.clear()
    folder = Path(app.outdir) / "_static" / "glass"
    folder.mkdir(parents=True, exist_ok=True)
    files.write(Path(app.outdir) / "live" / "sandbox.html", SANDBOX)
    for name in ("inline.js", "sandbox.js", "app.css"):
        shutil.copy(str(resources.files("glassformer") / "static" / name), folder / name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.add_directive("live", Live)
    app.add_directive("sandbox", Sandbox)
    app.connect("builder-inited", _glass)
    return {"parallel_read_safe": True}
