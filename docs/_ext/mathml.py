"""Equations as MathML, made when the site is built: no script, no font, nothing fetched."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def _inline(writer: Any, node: nodes.Node) -> None:
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.Node) -> None:
    writer.body.append(
        f'<div class="equation" tabindex="0">{convert(node.astext(), display="block")}</div>'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
