"""What a page of the course has beside text: one idea at five depths, questions with answers, the
code that does it.

::::{depths}                 the reader chooses one depth, once, for all pages
:::{depth} story             story, plain, vectors, equations, functions
...
:::
::::

:::{question} Why several heads?
The answer, folded.
:::

```{code-of} glassformer.core.nn.layers.RMSNorm.forward
```                          the lines of our own source, with a link to the file
"""

from __future__ import annotations

import html
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import sources
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

DEPTHS = {
    "story": "A story",
    "plain": "Plain words",
    "vectors": "Vectors",
    "equations": "Equations",
    "functions": "Functions",
}


class Depths(SphinxDirective):
    """One idea, told at five depths, of which one is shown."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        inside = self.parse_content_to_nodes()
        told = [one["classes"][-1] for one in inside if isinstance(one, nodes.container)]
        if told != list(DEPTHS):
            raise ExtensionError(
                f"{self.env.docname}, line {self.lineno}: depths are {told}, not {list(DEPTHS)}"
            )
        name = f"depth-{self.env.new_serialno('depths')}"
        buttons = "".join(
            f'<label><input type="radio" name="{name}" '
            f'value="{key}"{" checked" * (key == "plain")}>{title}</label>'
            for key, title in DEPTHS.items()
        )
        head = f'<fieldset class="depths"><legend>How deep?</legend>{buttons}</fieldset>'
        return [nodes.container("", nodes.raw("", head, format="html"), *inside, classes=["told"])]


class Depth(SphinxDirective):
    """One of the five."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        word = directives.choice(self.arguments[0], tuple(DEPTHS))
        return [nodes.container("", *self.parse_content_to_nodes(), classes=["depth", word])]


class Question(SphinxDirective):
    """A question whose answer is folded."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        head = f'<details class="question"><summary>{html.escape(self.arguments[0])}</summary>'
        tail = nodes.raw("", "</details>", format="html")
        return [nodes.raw("", head, format="html"), *self.parse_content_to_nodes(), tail]


class CodeOf(SphinxDirective):
    """The source of one of our objects as it stands now."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"docstring": directives.flag}

    def run(self) -> list[nodes.Node]:
        path = self.arguments[0]
        found = resolve(path)
        lines, first = inspect.getsourcelines(found)
        code = textwrap.dedent("".join(lines)).rstrip()
        if "docstring" not in self.options:
            code = without_docstring(code, found)
        file = Path(inspect.getsourcefile(found) or "").relative_to(sources.PACKAGE)
        block = nodes.literal_block(code, code, language="python")
        said = nodes.caption(
            "", "", sources.link(self.env.app, self.env.docname, file.as_posix(), first)
        )
        return [
            nodes.container(
                "", said, block, literal_block=True, classes=["literal-block-wrapper", "code-of"]
            )
        ]


def resolve(path: str) -> Any:
    """The object of a dotted path; ExtensionError where there is none."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for name in parts[cut:]:
                found = getattr(found, name)
        except AttributeError as error:
            raise ExtensionError(f"{path}: {error}") from error
        return inspect.unwrap(found) if callable(found) else found
    raise ExtensionError(f"There is no {path}.")


def without_docstring(code: str, found: Any) -> str:
    """The source without the docstring, which stands in the reference."""
    import ast

    tree = ast.parse(code).body[0]
    if not isinstance(tree, ast.FunctionDef | ast.ClassDef) or ast.get_docstring(tree) is None:
        return code
    told = tree.body[0]
    lines = code.splitlines()
    assert told.end_lineno is not None
    return "\n".join(lines[: told.lineno - 1] + lines[told.end_lineno :])


def reachable(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Code and tables that may be wider than the window are scrolled by keyboard too; a heading by
    role has a level."""
    for part in {"body", "furo_navigation_tree"} & context.keys():
        context[part] = re.sub("<pre(?=[ >])(?! tabindex)", '<pre tabindex="0"', context[part])
        context[part] = context[part].replace(
            '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'
        )
        context[part] = context[part].replace('role="heading">', 'role="heading" aria-level="2">')


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx asks for this."""
    for name, one in {
        "depths": Depths,
        "depth": Depth,
        "question": Question,
        "code-of": CodeOf,
    }.items():
        app.add_directive(name, one)
    app.connect("html-page-context", reachable, priority=900)  # after the theme's own
    return {"parallel_read_safe": True}
