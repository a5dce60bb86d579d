"""``glassformer convert``: save a model in another layout: Hugging Face's or our own."""

from __future__ import annotations

import argparse

from ..errors import need
from .common import MODEL, new_folder

HELP = "Save a model in another layout: Hugging Face's or our own."
EXAMPLES = ("glassformer convert out/mine --out published --layout hf",)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    one.add_argument("--out", metavar="FOLDER", help="where to save it")
    one.add_argument("--layout", choices=["hf", "glassformer"], default="hf", help="hf opens in transformers (hf)")
    one.add_argument("--context", type=int, metavar="N", help="tokens it is to read, in place of its own number")


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import store

    out = given.out or given.folder
    need(out is not None, "Say where the model goes: --out FOLDER.")
    folder = new_folder(out)
    model, tokenizer = store.load(given.model, context=given.context)
    store.save(model, folder, tokenizer, layout=given.layout, labels=store.labels(given.model))
    print(out)
