"""``glassformer convert``: save a model in another layout: Hugging Face's or our own."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import need
from .common import MODEL, new_folder, untrained, using

KINDS = ("nanogpt", "mingpt", "nanochat", "transformerlens", "hf")
EXAMPLES = (
    "glassformer convert out/mine --out published --layout hf",
    "glassformer convert --from nanogpt out/ckpt.pt --out out/nanogpt",
)


def options(one: argparse.ArgumentParser) -> None:
    """Its arguments."""
    one.add_argument("model", metavar="MODEL", help=MODEL)
    one.add_argument("folder", nargs="?", help=argparse.SUPPRESS)
    one.add_argument("--out", metavar="FOLDER", help="where to save it")
    one.add_argument("--layout", choices=["hf", "glassformer"], help="hf opens in transformers (hf where it can)")
    one.add_argument("--from", dest="kind", choices=KINDS, help="MODEL is a file that this library saved")
    one.add_argument("--config", metavar="FILE", help="with --from: JSON that says what its weights do not")
    one.add_argument("--context", type=int, metavar="N", help="tokens it is to read, in place of its own number")
    using(one)


def run(given: argparse.Namespace) -> None:
    """The command; its exit code, None for 0."""
    from .. import store, torchfiles

    out = given.out or given.folder
    need(out is not None, "Say where the model goes: --out FOLDER.")
    folder = new_folder(out)
    if given.kind is not None:
        need(given.context is None, "--context is for a model that is a folder; convert the file first.")
        config = Path(given.config) if given.config else None
        store.save(torchfiles.load(given.kind, Path(given.model), config), folder, layout=given.layout)
        print(out)
        return
    need(given.config is None, "--config goes with --from.")
    model, tokenizer = store.load(given.model, context=given.context)
    untrained(given.model)
    store.save(model, folder, tokenizer, layout=given.layout or "hf", labels=store.labels(given.model))
    print(out)
