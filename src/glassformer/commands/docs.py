"""``glassformer docs``: the site, opened in a browser, without a network."""

from __future__ import annotations

import webbrowser
from difflib import get_close_matches
from pathlib import Path

from ..core.errors import need, note

EXAMPLES = ("glassformer docs", "glassformer docs learn/04-attention", "glassformer docs --print")


def run(page: str = "index", *, print_: bool = False) -> None:
    """Opens a page of the site in a browser.

    page PAGE: a page of the site, such as learn/04-attention (the first)
    print_: print its address without opening it
    """
    from importlib import resources

    site = Path(str(resources.files("glassformer"))) / "site"
    need(
        (site / "index.html").exists(),
        "The documentation site is not built; run make docs in a checkout of Glassformer. Wheels "
        "built after that contain it.",
    )
    page = page.removesuffix(".html").removesuffix(".md").strip("/")
    pages = sorted(
        str(path.relative_to(site).with_suffix(""))
        for path in site.rglob("*.html")
        if "live" not in path.parts
    )
    near = get_close_matches(page, pages, n=1, cutoff=0.3)
    meant = f' Did you mean "{near[0]}"?' if near else ""
    need(page in pages, f'The site has no page "{page}".{meant}')
    url = (site / f"{page}.html").as_uri()
    print(url)
    if not print_ and not webbrowser.open(url):
        note("No browser was found; open this address yourself.")
