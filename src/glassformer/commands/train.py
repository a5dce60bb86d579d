"""``glassformer train``: train a model as the run file RUN.toml says, or with the defaults."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from ..core.errors import UserError, need
from .parsing import Words, split_settings

EXAMPLES = (
    "glassformer train --data.train notes.txt --out out/mine",
    "glassformer train runs/demo.toml --out out/demo --steps 500 --decoder.depth 8",
    "glassformer train --out out/demo --at 137",
)
EPILOG = (
    "Any setting can be given as --NAME VALUE: --steps 500, --data.train FILE, --recipe "
    "glass/4m. From a checkpoint: "
    "--from FOLDER, and --train.tune Frozen or LoRA for a part of it; what is learned: "
    "--train.objective Masked."
)
QWEN3 = "-qwen3"  # a glass recipe in the shape of Qwen3
USAGE = "glassformer train [RUN.toml] --out DIR [--resume | --at STEP] [--NAME VALUE ...]"


def run(
    *words: str,
    out: str | None = None,
    resume: bool = False,
    at: int | None = None,
    exportable: bool = False,
    settings: bool = False,
    use: Words = (),
) -> int | None:
    """Trains a model.

    out DIR: the folder of checkpoints, log and curves
    resume: continue from the last checkpoint in DIR
    at STEP: make the checkpoint of this step of the run in DIR again, with the same bytes
    exportable: train a glass recipe in Qwen3's shape, for transformers and llama.cpp
    settings: list every setting with its type, default and meaning
    """
    from ..runs import run_file
    from ..runs.defaults import choose, objective_settings

    if settings:
        print_settings()
        return None
    if not out:
        raise UserError(
            "Say where the run goes: --out DIR."
            if out is None
            else "--out is empty; name a folder."
        )
    if at is not None:
        need(
            not (words or resume or exportable),
            "--at repeats the run in --out as it was; leave the other settings out.",
        )
        from ..runs.replay import replay

        print(replay(out, at))
        return None
    named, changes = split_settings(words)
    folder = Path(out)
    # what is not given now stays
    file = named if named is not None or not resume else run_file.saved_run(folder)
    if exportable:
        need(
            file is None,
            'The run file names its model; write recipe = "glass/1m-qwen3" there, and leave '
            "--exportable out.",
        )
        recipe = str(changes.get("recipe", "glass/"))
        need(
            recipe.startswith("glass/") and "from" not in changes,
            "--exportable is for a glass recipe; leave it out.",
        )
        if "recipe" in changes:
            changes["recipe"] = recipe.removesuffix(QWEN3) + QWEN3
    if file is None:
        changes = {**objective_settings(changes), **changes}
    run_file.read_run(file, changes)  # a slip is told before torch is imported
    from ..runs.launch import run

    # a run file says all that it means
    defaults, chosen = choose(changes, exportable) if file is None else ({}, "")
    run_settings = run_file.read_run(file, {**defaults, **changes})
    use_options = [word for path in use for word in ("--use", path)]
    again = shlex.join(
        [*program_command(), "train", *words, *use_options, "--out", out, "--resume"]
    )
    try:
        ended = run(run_settings, folder, resume, sample=write_sample, command=again, chosen=chosen)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f" Continue with:\n  {again}" if (folder / "run.json").exists() else ""
        ) from None
    return 128 + ended.signal if ended.signal else None


def print_settings() -> None:
    """Every setting: its name on the command line and in a run file, its type, its default, what it
    means."""
    from ..runs import settings

    for name, entry in settings.types().items():
        print(f"\n{name}: {(entry.kind.__doc__ or '').splitlines()[0].replace('``', '')}")
        for setting in entry.settings:
            default = f" = {setting.default}" if setting.default else ""
            print(f"  --{setting.path} ({setting.kind}{default}): {setting.meaning}")


def program_command() -> list[str]:
    """Returns the command that starts this program again: its name where the shell finds it, else
    its path."""
    path = Path(sys.argv[0])
    if path.name != "glassformer":
        return [os.path.relpath(sys.executable), "-m", "glassformer"]
    executable = shutil.which("glassformer")
    return [
        "glassformer" if executable and Path(executable).samefile(path) else os.path.relpath(path)
    ]


def write_sample(
    model: Any, tokenizer: Any, source: str | None, source_tokenizer: Any = None
) -> str:
    """Returns a sample of a model under training: its own text, or its output for a source text."""
    from ..core import generation
    from ..core.tokenizer.framing import question, text_start

    if model.config.has_source:
        beams = generation.beam(
            model, tokenizer, source or "", beams=1, max_new=80, source_tokenizer=source_tokenizer
        )
        return f"{source} -> {beams[0][0].text}"
    if source is None:
        start = [text_start(tokenizer) or 0]
        return (
            generation.generate(
                model, tokenizer, [start], max_new=80, temperature=0.8, seed=1, eos=()
            )
            .run()
            .text
        )
    prompt = question(tokenizer, tokenizer.encode(source))
    return (
        f"{source} -> "
        f"{generation.generate(model, tokenizer, [prompt], max_new=80, temperature=0.0).run().text}"
    )
