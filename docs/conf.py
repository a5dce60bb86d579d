"""The site, `make docs`: Furo on Sphinx, pages in Markdown, every number computed by
_ext/computed.py."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import glassformer  # noqa: E402

warnings.filterwarnings("ignore", module="myst_parser")  # its own use of what Sphinx 11 will drop
project = "Glassformer"
version = release = glassformer.__version__
author = "the people who build Glassformer"
copyright = author
_told = subprocess.run(
    ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True
)
built_by = f"Glassformer {release}" + (f", {_told.stdout.strip()}" if _told.returncode == 0 else "")

extensions = [
    "myst_parser",
    "computed",
    "frames",
    "sources",
    "recorded",
    "mathml",
    "teaching",
    "commandline",
    "glossary",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_ext", "_static", "use/numbers.py"]
myst_enable_extensions = ["colon_fence", "dollarmath", "deflist", "attrs_inline"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
copybutton_selector = "div:not(.result) > div.highlight > pre"
nitpicky = False

html_theme = "furo"
html_title = "Glassformer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses from disk
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
html_context = {"built_by": built_by}
templates_path = ["_templates"]


def remove_maps(app, error):
    """Removes the theme's source maps, which nobody reads who reads the site."""
    for path in Path(app.outdir).rglob("*.map"):
        path.unlink()


def setup(app):
    app.connect("build-finished", remove_maps)
