"""``glassformer average``: one model of the mean weights of a run's last checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import new_folder, using

EXAMPLES = ("glassformer average out/mine --last 5 --out out/averaged",)


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("folder", metavar="DIR", help="the folder of a run, as given to train --out")
    add("--last", type=int, default=5, metavar="N", help="the last N checkpoints it keeps (5)")
    add("--out", required=True, metavar="FOLDER", help="where to save the model")
    using(one)


def run(given: argparse.Namespace) -> None:
    from ..checkpoints import Checkpoint, store
    from ..training import average

    out = new_folder(given.out)
    model, tokenizer, labels = average(Path(given.folder), given.last)
    reads = Checkpoint.open(given.folder).source_tokenizer()
    store.save(model, out, tokenizer, labels=labels, source_tokenizer=reads)
    print(given.out)
