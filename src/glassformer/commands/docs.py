"""``glassformer docs``: the site, opened in a browser, without a network."""

from __future__ import annotations

import argparse
import webbrowser
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from ..errors import need, note

EXAMPLES = ("glassformer docs", "glassformer docs learn/04-attention", "glassformer docs --print")


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add(
        "page",
        nargs="?",
        default="index",
        metavar="PAGE",
        help="a page of it, as learn/04-attention (the first)",
    )
    add(
        "--print",
        dest="only_print",
        action="store_true",
        help="print where it is, and open nothing",
    )


def run(given: argparse.Namespace) -> None:
    site = Path(str(resources.files("glassformer"))) / "site"
    need(
        (site / "index.html").exists(),
        "The site is not built here: run make docs in a checkout of Glassformer; a wheel built "
        "after that carries it.",
    )
    page = given.page.removesuffix(".html").removesuffix(".md").strip("/")
    there = sorted(
        str(one.relative_to(site).with_suffix(""))
        for one in site.rglob("*.html")
        if "live" not in one.parts
    )
    near = get_close_matches(page, there, n=1, cutoff=0.3)
    meant = f' Did you mean "{near[0]}"?' if near else ""
    need(page in there, f'The site has no page "{page}".{meant}')
    url = (site / f"{page}.html").as_uri()
    print(url)
    if not given.only_print and not webbrowser.open(url):
        note("No browser was found; open this address yourself.")
