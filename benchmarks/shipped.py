"""Put a trained run into the package as one of its models: fp16, 4 MB at most, with its card.

    glassformer train runs/tiny-stories.toml --out out/tiny-stories
    python benchmarks/shipped.py out/tiny-stories tiny-stories

The card, README.md, has a first paragraph that a person writes; what follows is the run's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from glassformer.core import files
from glassformer.formats import store
from glassformer.formats.resolve import MODELS, checkpoint_folder
from glassformer.runs import training_log

MOST = 4 << 20
CUT = "\n## Training\n"


def card(run: str, folder: Path, parameters: int) -> str:
    """The card: what a person wrote, and how the run went."""
    path, log = folder / "README.md", training_log(run)
    written = path.read_text(encoding="utf-8").split(CUT)[0]
    best = min(
        (line for line in log.lines if "valid_loss" in line), key=lambda line: line["valid_loss"]
    )
    figures = [
        f"- validation {key.removeprefix('valid_')}: {value:.4f}"
        for key, value in best.items()
        if key.startswith("valid_")
    ]
    facts = (
        f"- {parameters:,} parameters, in fp16",
        f"- trained on {json.dumps(log.settings['data']['train'])}",
        f"- step {best['step']:,} of {log.settings['train']['steps']:,}, the best by validation",
        *figures,
    )
    command = f"`glassformer train runs/{folder.name}.toml --out out/{folder.name}`"
    return "\n".join((f"{written.rstrip()}\n{CUT}", command, "", *facts, ""))


def main(run: str, name: str) -> None:
    """Write the model of the run's best checkpoint."""
    model, tokenizer = store.load(run, dtype="float16")
    folder = MODELS / name
    store.save(model, folder, tokenizer)
    parameters = sum(weight.numel() for weight in model.parameters())
    files.write(folder / "README.md", card(run, folder, parameters).encode())
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size:,} bytes, from {checkpoint_folder(Path(run)).name}")
    if size > MOST:
        sys.exit(f"That is more than {MOST:,}; make it smaller.")


if __name__ == "__main__":
    main(*sys.argv[1:])
