"""The glossary as a page, and a link from each term's first use on a page of the course to it."""

from __future__ import annotations

import re
from typing import Any

import sources
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PAGE = "reference/glossary"
PLAIN = (nodes.paragraph, nodes.list_item, nodes.emphasis, nodes.strong)
NEVER = (
    nodes.reference,
    nodes.literal,
    nodes.title,
    nodes.literal_block,
    nodes.raw,
    nodes.math,
    nodes.math_block,
)


class Glossary(SphinxDirective):
    """Every term: its sentence, formula, line of code, a number computed now, and where it stands
    on the road."""

    def run(self) -> list[nodes.Node]:
        from glossary_numbers import LIVE

        from glassformer.learn import exercise, glossary

        pages = sorted(one for one in self.env.found_docs if re.match(r"learn/\d\d-", one))
        made: list[nodes.Node] = []
        for term in sorted(glossary.terms(), key=lambda one: one.name.lower()):
            section = nodes.section(ids=[term.key.replace("_", "-")], names=[term.key])
            section += nodes.title("", term.name)
            also = f" Also: {', '.join(term.also)}." if term.also else ""
            section += nodes.paragraph("", term.sentence + also)
            if term.formula:
                section += nodes.literal_block(term.formula, term.formula, language="text")
            section += nodes.paragraph("", "", nodes.Text(LIVE[term.key]()), classes=["value"])
            where = nodes.paragraph(
                "", "", sources.link(self.env.app, self.env.docname, term.code.path, term.code.line)
            )
            if term.road <= len(pages):
                uri = self.env.app.builder.get_relative_uri(self.env.docname, pages[term.road - 1])
                title = exercise.ROAD[term.road - 1]
                where += [nodes.Text(" · on the road: "), nodes.reference("", title, refuri=uri)]
            if term.exercise:
                where += [
                    nodes.Text(" · exercise: "),
                    nodes.literal("", f"glassformer learn start {term.exercise}"),
                ]
            section += where
            made.append(section)
        return made


def link_terms(app: Sphinx, tree: nodes.document, page: str) -> None:
    """On a page of the course or of a task, the first time a term stands in running text it leads
    to the glossary."""
    if not re.match(r"learn/\d\d-|use/", page) or PAGE not in app.env.found_docs:
        return
    from glassformer.learn import glossary

    names = glossary.names()
    longest_first = sorted(names, key=len, reverse=True)
    pattern = re.compile(
        rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})s?(?![\w-])", re.IGNORECASE
    )
    lower = {name.lower(): term for name, term in names.items()}
    uri, done = app.builder.get_relative_uri(page, PAGE), set[str]()
    for text in list(tree.findall(nodes.Text)):
        above = list(_above(text))
        if any(isinstance(one, NEVER) for one in above) or not any(
            isinstance(one, PLAIN) for one in above
        ):
            continue
        parts, at = list[nodes.Node](), 0
        for found in pattern.finditer(text):
            term = lower.get(found[1].lower())
            if term is None or term.key in done:
                continue
            done.add(term.key)
            target = f"{uri}#{term.key.replace('_', '-')}"
            link = nodes.reference(
                "", found[0], refuri=target, classes=["term"], reftitle=term.sentence
            )
            parts += [nodes.Text(text[at : found.start()]), link]
            at = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[at:])])


def _above(node: nodes.Node) -> Any:
    while node.parent is not None:
        node = node.parent
        yield node


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    app.add_directive("terms", Glossary)
    app.connect("doctree-resolved", link_terms)
    return {"parallel_read_safe": True}
