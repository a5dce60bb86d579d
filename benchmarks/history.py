"""What came before and what came after, on the same data: the numbers of docs/history.md.

    GLASSFORMER_DATA=../shared/data python benchmarks/history.py --out FOLDER [--write] [--steps N] [--only PART ...]

Three parts, each by ``glassformer compare`` over the run files in runs/history:
  labels      SST-2's sentences, good or bad: bag of words, word2vec, BERT's way, GPT's way, experts
  answer      the same sentences, the label written as a word: one context vector, attention, the Transformer of 2017
  backwards   beginnings of Multi30k's captions said backwards, letter by letter, by length: the bottleneck and its cure

Everything runs on one thread, one after the other; seconds are the processor's own, since other work may run beside.
What is finished in FOLDER is not done again. --write puts the figures into docs/history.json, which the page reads;
--steps N cuts every training short: the losses of such a cut are kept apart, and a test trains it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "history"
KEPT = ROOT / "docs" / "history.json"
WORK = Path("out") / "history"  # below FOLDER, as the run files say it
BORDERS = (4, 8, 12, 16, 20, 24, 28)  # letters
READERS = {"bert": "masked", "gpt": "next", "experts": "experts"}  # whose reading comes before their labels
PARTS = ("backwards", "labels", "answer")


class Bench:
    """Runs commands in FOLDER, remembers what each cost the processor."""

    def __init__(self, folder: Path, steps: int | None) -> None:
        self.folder, self.steps = folder, steps
        self.data = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data")).resolve()
        self.record = folder / "seconds.json"
        self.seconds: dict[str, float] = json.loads(self.record.read_text()) if self.record.exists() else {}

    def call(self, name: str, *words: Any) -> str:
        """Standard output of ``glassformer WORDS``; the processor's seconds are kept under ``name`` the first time."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLASSFORMER_DATA": str(self.data)}
        command = [sys.executable, "-m", "glassformer", *map(str, words)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode:
            raise SystemExit(f"glassformer {' '.join(map(str, words))} ended with {ended.returncode}")
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.seconds.setdefault(name, round(used, 1))
        self.record.write_text(json.dumps(self.seconds, indent=1))
        return ended.stdout

    def steps_of(self) -> list[Any]:
        """Settings that cut a training short."""
        if self.steps is None:
            return []
        return ["--steps", self.steps, "--evaluate-every", self.steps, "--save-every", self.steps]

    def train(self, name: str, out: Path, *words: Any) -> None:
        """A run of its own, unless it is finished."""
        if not (self.folder / out / "best").exists():
            self.call(name, "train", RUNS / f"{name}.toml", "--out", out, *words, *self.steps_of())

    def compared(self, part: str, names: list[str], *words: Any) -> list[dict[str, Any]]:
        """The rows of ``glassformer compare``: each arm trained alone first, so that its seconds are its own."""
        files = [self.run_file(f"{part}-{name}") for name in names]
        for name, file in zip(names, files, strict=True):
            if f"{part}-{name}" not in self.seconds:
                self.call(f"{part}-{name}", "compare", file, "--out", WORK / part)
        said = self.call(f"{part}: tests", "compare", *files, "--out", WORK / part, "--json", *words)
        rows: list[dict[str, Any]] = json.loads(said)
        return rows

    def run_file(self, name: str) -> Path:
        """A run file of ours, with fewer steps where asked."""
        text = (RUNS / f"{name}.toml").read_text(encoding="utf-8")
        if self.steps is not None:
            keys = ("steps", "evaluate_every", "save_every")
            lines = [
                f"{line.split()[0]} = {self.steps}" if line.split(" ")[0] in keys else line for line in text.split("\n")
            ]
            text = "\n".join(lines)
        path = self.folder / WORK / "runs" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def put(folder: Path, name: str, pairs: list[tuple[str, str]]) -> None:
    """Pairs as two files, line by line."""
    for side, at in (("source", 0), ("target", 1)):
        (folder / f"{name}.{side}").write_text("".join(f"{pair[at]}\n" for pair in pairs), encoding="utf-8")


def backwards(captions: list[str], seed: int) -> list[tuple[str, str]]:
    """Beginnings of captions, up to 8 words, and the same from the end; letters parted by blanks."""
    chosen, made = random.Random(seed), list[tuple[str, str]]()
    for caption in captions:
        words = [word for word in caption.lower().split() if word.isalpha() and word.isascii()]
        letters = "_".join(words[: chosen.randint(1, 8)])[:32].strip("_")
        if letters:
            made.append((" ".join(letters), " ".join(reversed(letters))))
    return made


def prepare(bench: Bench) -> None:
    """The files that the runs read, made of the shared ones."""
    folder, data = bench.folder / WORK / "data", bench.data
    folder.mkdir(parents=True, exist_ok=True)
    for split, file in (("train", "train"), ("valid", "dev"), ("test", "test")):
        rows = [line.split("\t") for line in (data / "sst2" / f"{file}.tsv").read_text(encoding="utf-8").splitlines()]
        put(folder, f"answer.{split}", [(text, ("bad", "good")[int(label)]) for text, label in rows])
    for seed, (split, file) in enumerate((("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))):
        captions = (data / "multi30k" / f"{file}.en").read_text(encoding="utf-8").splitlines()
        put(folder, f"backwards.{split}", backwards(captions, seed))
    running = ["tinystories/test.txt", "wikitext-2-raw/wiki.valid.raw", "wikitext-2-raw/wiki.test.raw"]
    texts = [(data / name).read_text(encoding="utf-8") for name in running]
    texts.append((folder / "answer.train.source").read_text(encoding="utf-8"))
    (folder / "reading.txt").write_text("\n".join(texts), encoding="utf-8")


def labels(bench: Bench) -> list[dict[str, Any]]:
    """SST-2 by those that end in a label."""
    out = bench.folder / WORK
    if not (out / "averaged").exists():
        reading, words = WORK / "data" / "reading.txt", WORK / "words.bin"
        bench.call("read-words", "words", "train", reading, "--out", words, "--least", 2, "--dim", 100)
        bench.call("average", "words", "average", words, "--out", WORK / "averaged")
    for reader in READERS.values():
        bench.train(f"read-{reader}", WORK / reader)
    names = ["word2vec", "bert", "gpt", "experts"]
    rows = bench.compared("labels", names, "--bag", "--test", "sst2/test.tsv")
    before = {"labels-word2vec": "read-words"} | {f"labels-{name}": f"read-{of}" for name, of in READERS.items()}
    read = {row["name"]: bench.seconds.get(before.get(row["name"], "")) for row in rows}
    return [{**labelled(bench, row), "reading": read[row["name"]]} for row in rows]


def labelled(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a row with labels."""
    return {**figures(bench, row), "accuracy": row["test"]["accuracy"]}


def written(bench: Bench, part: str, row: dict[str, Any], *words: Any) -> dict[str, Any]:
    """Exact answers of a pair model, greedy, as ``glassformer eval`` counts them."""
    files = ["--data", WORK / "data" / f"{part}.test.source", "--target", WORK / "data" / f"{part}.test.target"]
    model = WORK / part / row["name"]
    asked = ("eval", model, *files, "--figures", "exact", "--beams", 1, "--json", *words)
    found: dict[str, Any] = json.loads(bench.call(f"{row['name']}: test", *asked))
    return found


def answer(bench: Bench) -> list[dict[str, Any]]:
    """SST-2 by those that write."""
    rows = bench.compared("answer", ["rnn", "rnn-attention", "transformer"])
    found = [(row, written(bench, "answer", row, "--max-new", 4)) for row in rows]
    return [{**figures(bench, row), "accuracy": test["exact"]} for row, test in found]


def by_length(bench: Bench) -> list[dict[str, Any]]:
    """Letters backwards: all of it right, by letters of the source."""
    rows = bench.compared("backwards", ["rnn", "rnn-attention", "transformer"])
    lengths = ("--max-new", 48, "--lengths", ",".join(map(str, BORDERS)))
    found = [(row, written(bench, "backwards", row, *lengths)) for row in rows]
    return [{**figures(bench, row), "exact": test["exact"], "by length": test["by length"]} for row, test in found]


def figures(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a row of ``compare``: the processor's seconds in place of the clock's, where known."""
    kept = {name: row[name] for name in ("name", "parameters", "tokens", "valid")}
    return {**kept, "seconds": bench.seconds.get(row["name"], round(row["seconds"], 1))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the runs go, and go on")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)")
    parser.add_argument("--steps", type=int, metavar="N", help="so many steps each, to try the script")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/history.json")
    given = parser.parse_args()
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, given.steps)
    prepare(bench)
    import torch

    work = {"backwards": by_length, "labels": labels, "answer": answer}
    before: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if given.write and KEPT.exists() else {}
    found = {part: work[part](bench) for part in given.only}
    if given.steps is not None:
        losses = {row["name"]: row["valid"]["loss"] for rows in found.values() for row in rows}
        found = {**before, "cut": {"steps": given.steps, "losses": losses}}
    else:
        found = {
            **before,  # parts may be run one by one
            **found,
            "command": "GLASSFORMER_DATA=../shared/data python benchmarks/history.py --out FOLDER --write",
            "machine": f"one thread of {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
            "date": date.today().isoformat(),
            "reading bytes": (folder / WORK / "data" / "reading.txt").stat().st_size,
            "processor seconds": {**before.get("processor seconds", {}), **bench.seconds},
        }
    said = json.dumps(found, indent=1) + "\n"
    if given.write:
        KEPT.write_text(said, encoding="utf-8")
    print(said)


if __name__ == "__main__":
    main()
