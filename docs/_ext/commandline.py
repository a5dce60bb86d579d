"""Reference pages from the parsers and tables themselves: every verb's help, every recipe, the
glossary."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class CommandLine(SphinxDirective):
    """Every verb of ``glassformer`` as its own ``--help`` tells it."""

    def run(self) -> list[nodes.Node]:
        from glassformer.cli import parser
        from glassformer.commands import VERBS

        made: list[nodes.Node] = []
        for verb, verb_parser in parser(VERBS).verbs.items():
            section = nodes.section(ids=[f"glassformer-{verb}"], names=[verb])
            section += nodes.title("", f"glassformer {verb}")
            for words in ([verb], *([verb, task] for task in verb_parser.verbs)):
                text = helped(*words)
                section += nodes.literal_block(text, text, language="text")
            made.append(section)
        return made


def helped(*words: str) -> str:
    """What ``glassformer WORDS --help`` prints."""
    from glassformer.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return said.getvalue().rstrip()


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
