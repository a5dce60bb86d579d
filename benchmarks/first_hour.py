"""A first training on a text of one's own: what is chosen from the text against fixed settings, in
bits per byte.

    python benchmarks/first_hour.py [--texts shakespeare tinystories] [--sizes 20 200] [--ways
    chosen fixed nanogpt]

For each text the first KB of it (10**3 bytes) are a file that `glassformer train --data.train`
gets, by itself (chosen) or with a run file that holds the settings that were fixed before (fixed: a
BPE of 4,096, glass/1m, 1,000 steps of 16 x 256) or those of nanoGPT's README for CPUs (nanogpt: 4
layers, 4 heads, 128 wide, 2,000 steps of 12 x 64, AdamW, on bytes). Then the model that the folder
stands for reads the last 40 KB of the text, which none of them saw: bits per byte are comparable
between tokenizers. Seconds are of the processor, on one thread, training alone. --set NAME=VALUE
changes a setting of the chosen way: so the table of `runs/defaults.py` was found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from glassformer.formats.data import find as find_corpus

HELD_OUT = 40_000
MIXED = (
    "python-docs",
    "tinystories",
    "shakespeare",
    "wikitext-2-raw/wiki.valid.raw",
    "wikitext-2-raw/wiki.test.raw",
)
MIXED += (
    "tinystories/test.txt",
    "multi30k/train.de",
    "multi30k/train.fr",
    "multi30k/train.en",
    "scan/tasks_train_simple.txt",
)
TEXTS = {
    "shakespeare": ("shakespeare",),
    "tinystories": ("tinystories",),
    "wikitext": MIXED[3:5],
    "python-docs": ("python-docs",),
    "german": ("multi30k/train.de",),
    "names": ("names",),
    "mixed": MIXED,
}
NANOGPT = """
[model]
recipe = "gpt2/124m"
dim = 128
context = 64
decoder.depth = 4
decoder.dropout = 0.0
decoder.position.length = 64
decoder.pattern.attention.heads = 4
decoder.pattern.feedforward.hidden = 512
[data]
train = "{path}"
tokenizer = "byte"
[train]
steps = 2000
batch = 12
schedule = {{ type = "Cosine", warmup = 100, floor = 0.1 }}
optimizer = {{ type = "AdamW", lr = 1e-3, betas = [0.9, 0.99] }}
evaluate_every = 100
"""
WAYS = {"chosen": None, "fixed": '[data]\ntrain = "{path}"\n', "nanogpt": NANOGPT}


def split_text(name: str) -> tuple[bytes, bytes]:
    """The text to learn from, and its end, which is held out."""
    full = [
        b"\n".join(document.encode() for document in find_corpus(text).documents())
        for text in TEXTS[name]
    ]
    stored = HELD_OUT // len(full)
    return b"\n".join(item[:-stored] for item in full), b"\n".join(item[-stored:] for item in full)


def measure(
    kind: str, content: bytes, held_out: bytes, changes: list[str]
) -> dict[str, float | str]:
    """One training and what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "mine.txt").write_bytes(content.decode(errors="ignore").encode())
        (place / "held.txt").write_bytes(held_out.decode(errors="ignore").encode())
        words = ["--data.train", str(place / "mine.txt"), *(f"--{change}" for change in changes)]
        if (table := WAYS[kind]) is not None:
            (place / "run.toml").write_text(table.format(path=place / "mine.txt"))
            words = [str(place / "run.toml")]
        out = place / "out"
        command = [sys.executable, "-m", "glassformer"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLASSFORMER_CACHE": str(place / "cache"),
        }

        def call(*args: str) -> str:
            return subprocess.run(
                [*command, *args],
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ).stdout

        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        call(
            "train",
            *words,
            "--out",
            str(out),
            "--sample_every",
            "0",
            "--tensorboard",
            "false",
            "--dtype",
            "float32",
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        result = json.loads(call("eval", str(out), "--data", str(place / "held.txt"), "--json"))
        topic = json.loads((out / "run.json").read_text())
        lines = (out / "log.jsonl").read_text().splitlines()
        data, model = topic["data"], topic["model"]
        return {
            "bits": result["bits_per_byte"],
            "seconds": after.ru_utime - before.ru_utime,
            "tokenizer": f"{data['tokenizer'] or 'bpe'} {model['embed']['vocab']:,}",
            "model": f"{model['decoder']['depth']} x {model['dim']}",
            "steps": f"{(out / 'best').read_text().strip()[5:].lstrip('0')} of {len(lines)}",
        }


def main() -> int:
    """Each text in each size each way, a row each as soon as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=["shakespeare", "tinystories"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[20, 200], metavar="KB")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    print(
        "| text | KB | way | bits per byte | tokenizer | model | best of steps | processor "
        "seconds |\n|" + "---|" * 8
    )
    for name in args.texts:
        learnt, held_out = split_text(name)
        for size in args.sizes:
            for variant in args.ways:
                row = measure(variant, learnt[: 1000 * size], held_out, args.set)
                text = (
                    f"{row['bits']:.3f} | {row['tokenizer']} | {row['model']} | {row['steps']} | "
                    f"{row['seconds']:.0f}"
                )
                kb = min(size, len(learnt) // 1000)
                print(f"| {name} | {kb:,} | {variant} {' '.join(args.set)}| {text} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
