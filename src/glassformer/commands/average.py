"""``glassformer average``: one model of the mean weights of a run's last checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import add_use_option, new_folder

EXAMPLES = ("glassformer average out/mine --last 5 --out out/averaged",)


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="DIR", help="the folder of a run, as given to train --out")
    add("--last", type=int, default=5, metavar="N", help="the last N checkpoints it keeps (5)")
    add("--out", required=True, metavar="FOLDER", help="where to save the model")
    add_use_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..checkpoints import Checkpoint, store
    from ..training import average

    out = new_folder(args.out)
    model, tokenizer, labels = average(Path(args.folder), args.last)
    reads = Checkpoint.open(args.folder).source_tokenizer()
    store.save(model, out, tokenizer, labels=labels, source_tokenizer=reads)
    print(args.out)
