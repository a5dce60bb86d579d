"""``glassformer average``: one model of the mean weights of a run's last checkpoints."""

from __future__ import annotations

from pathlib import Path

from .common import new_folder
from .parsing import Words

EXAMPLES = ("glassformer average out/mine --last 5 --out out/averaged",)


def run(folder: Path, *, last: int = 5, out: str, use: Words = ()) -> None:
    """Saves one model of the mean weights of a run's last checkpoints.

    folder DIR: the folder of a run (train --out)
    last N: number of last checkpoints to average
    out FOLDER: where to save the model
    """
    from ..formats import store
    from ..formats.checkpoint import Checkpoint
    from ..runs.run_checkpoints import average

    new_folder(out)
    model, tokenizer = average(folder, last)
    reads = Checkpoint.open(str(folder)).source_tokenizer()
    store.save(model, Path(out), tokenizer, source_tokenizer=reads)
    print(out)
