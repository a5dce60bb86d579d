"""``glassformer train``: train a model as the run file RUN.toml says, or with the defaults."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from ..errors import UserError
from .common import using
from .parsing import settings

EXAMPLES = (
    "glassformer train --data.train notes.txt --out out/mine",
    "glassformer train runs/demo.toml --out out/demo --steps 500 --decoder.depth 8",
)
OPEN = True  # settings are known by the run file's vocabulary alone
EPILOG = (
    "Any setting can be given as --NAME VALUE: --steps 500, --data.train FILE, --recipe "
    "glass/4m. From a checkpoint: "
    "--from FOLDER, and --train.tune Frozen or LoRA for a part of it; what is learned: "
    "--train.objective Masked."
)
USAGE = "glassformer train [RUN.toml] --out DIR [--resume] [--NAME VALUE ...]"


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("--out", metavar="DIR", help="where checkpoints, log and curves go")
    add("--resume", action="store_true", help="go on from the last checkpoint in DIR")
    add(
        "--settings",
        action="store_true",
        help="list every setting with its type, default and meaning",
    )
    using(one)


def run(given: argparse.Namespace) -> int | None:
    from ..config import run_file

    if given.settings:
        table()
        return None
    if not given.out:
        raise UserError(
            "Say where the run goes: --out DIR."
            if given.out is None
            else "--out is empty; name a folder."
        )
    named, changes = settings(given.rest)
    out = Path(given.out)
    # what is not given now stays
    kept = run_file.begun(out) if given.resume and named is None else None
    run_file.read(kept or named, changes)  # a slip is told before torch is imported
    from ..training import choose, run

    # a run file says all that it means
    found, chosen = choose(changes) if kept is None and named is None else ({}, "")
    wanted = run_file.read(kept or named, {**found, **changes})
    used = [word for file in given.use for word in ("--use", file)]
    words = [*called(), "train", *given.rest, *used, "--out", given.out, "--resume"]
    again = shlex.join(words)
    try:
        ended = run(wanted, out, given.resume, sample=write_a_little, command=again, chosen=chosen)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f" Continue with:\n  {again}" if (out / "run.json").exists() else ""
        ) from None
    return 128 + ended.signal if ended.signal else None


def table() -> None:
    """Every setting: its name on the command line and in a run file, its type, its default, what it
    means."""
    from ..config import settings

    for name, one in settings.types().items():
        print(f"\n{name}: {(one.kind.__doc__ or '').splitlines()[0].replace('``', '')}")
        for setting in one.settings:
            default = f" = {setting.default}" if setting.default else ""
            print(f"  --{setting.path} ({setting.kind}{default}): {setting.meaning}")


def called() -> list[str]:
    """How this program is called again from here: by its name where the shell finds it, else by its
    path."""
    path = Path(sys.argv[0])
    if path.name != "glassformer":
        return [os.path.relpath(sys.executable), "-m", "glassformer"]
    found = shutil.which("glassformer")
    return ["glassformer" if found and Path(found).samefile(path) else os.path.relpath(path)]


def write_a_little(
    model: Any, tokenizer: Any, source: str | None, source_tokenizer: Any = None
) -> str:
    """What a model under training says when it is asked to begin, or what it makes of a source
    text."""
    from .. import config, generation
    from ..tokenizer.framing import question, text_start

    if isinstance(model.config, config.EncoderDecoder):
        told = generation.beam(
            model, tokenizer, source or "", beams=1, max_new=80, source_tokenizer=source_tokenizer
        )
        return f"{source} -> {told[0][0].text}"
    if source is None:
        start = [text_start(tokenizer) or 0]
        return (
            generation.generate(
                model, tokenizer, [start], max_new=80, temperature=0.8, seed=1, eos=()
            )
            .run()
            .text
        )
    asked = question(tokenizer, tokenizer.encode(source))
    return (
        f"{source} -> "
        f"{generation.generate(model, tokenizer, [asked], max_new=80, temperature=0.0).run().text}"
    )
