"""What came before and what came after, on the same data: the numbers of docs/history.md.

    GLASSFORMER_DATA=../shared/data python benchmarks/history.py --out FOLDER [--write] [--steps N]
    [--only PART ...]

Two parts, each by ``glassformer compare`` over the run files in runs/history:
  sentences   SST-2, good or bad, three seeds: bag of words, word2vec, one vector, attention, the encoder of 2017,
              BERT's way, GPT's way, experts; none reads anything but these sentences
  backwards   beginnings of Multi30k's captions said backwards, letter by letter, by length, three seeds: the
              bottleneck and its cure

Everything runs on one thread, one after the other; seconds are the processor's own, since other
work may run beside. What is finished in FOLDER is not done again. --write puts the figures into
docs/history.json, which the page reads; --steps N cuts every training short: the losses of such a
cut are kept apart, and a test trains it again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
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
# who learn from the sentences without their labels first, by NAME-reads.toml
READERS = ("bert", "gpt")
PEOPLE = ("word2vec", "rnn", "rnn-attention", "transformer", *READERS, "experts")
VOCAB, DIM = 7200, 128  # words that occur at least twice, and the width of all models here
EPOCHS = 40  # of word2vec
COMMAND = "GLASSFORMER_DATA=../shared/data python benchmarks/history.py"
PARTS = ("backwards", "sentences")


class Bench:
    """Runs commands in FOLDER, remembers what some cost the processor."""

    def __init__(self, folder: Path, steps: int | None = None, seeds: int = 3) -> None:
        self.folder, self.steps, self.seeds = folder, steps, seeds
        self.data = Path(
            os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared" / "data")
        ).resolve()
        self.record = folder / "seconds.json"
        self.seconds: dict[str, float] = (
            json.loads(self.record.read_text()) if self.record.exists() else {}
        )

    def call(self, *words: Any) -> str:
        """Standard output of ``glassformer WORDS``."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLASSFORMER_DATA": str(self.data)}
        command = [sys.executable, "-m", "glassformer", *map(str, words)]
        ended = subprocess.run(
            command, cwd=self.folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        if ended.returncode:
            raise SystemExit(
                f"glassformer {' '.join(map(str, words))} ended with {ended.returncode}"
            )
        return ended.stdout

    def make(self, folder: Path, *words: Any) -> float:
        """``glassformer WORDS`` unless what it makes is there; the processor's seconds it took, its
        start counted."""
        if not (self.folder / folder).exists():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            self.call(*words)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            in_use = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            self.seconds[folder.name] = round(in_use, 1)
            self.record.write_text(json.dumps(self.seconds, indent=1))
        return self.seconds[folder.name]

    def compared(self, out: str, names: list[str], *words: Any) -> list[dict[str, Any]]:
        """The rows of ``glassformer compare``."""
        files = [self.run_file(name) for name in names]
        rows: list[dict[str, Any]] = json.loads(
            self.call("compare", *files, "--out", WORK / out, "--json", *words)
        )
        return rows

    def run_file(self, name: str) -> Path:
        """A run file of ours, with fewer steps where asked."""
        text = (RUNS / f"{name}.toml").read_text(encoding="utf-8")
        if self.steps is not None:
            keys = ("steps", "evaluate_every", "save_every")
            lines = [
                f"{line.split()[0]} = {self.steps}" if line.split(" ")[0] in keys else line
                for line in text.split("\n")
            ]
            text = "\n".join(lines)
        if self.seeds == 1:  # whose folder compare names without a seed
            text = text.replace("-reads.seed-{seed}", "-reads")
        path = self.folder / WORK / "runs" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


def backwards(captions: list[str], seed: int) -> list[tuple[str, str]]:
    """Beginnings of captions, up to 8 words, and the same from the end; letters parted by
    blanks."""
    chosen, result = random.Random(seed), list[tuple[str, str]]()
    for caption in captions:
        words = [word for word in caption.lower().split() if word.isalpha() and word.isascii()]
        letters = "_".join(words[: chosen.randint(1, 8)])[:32].strip("_")
        if letters:
            result.append((" ".join(letters), " ".join(reversed(letters))))
    return result


def put(folder: Path, name: str, lines: list[str]) -> None:
    """A file of lines."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def by_length(bench: Bench) -> list[dict[str, Any]]:
    """Letters backwards: all of it right, by letters of the source."""
    folder = bench.folder / WORK / "data"
    for seed, (split, file) in enumerate(
        (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr"))
    ):
        pairs = backwards(
            (bench.data / "multi30k" / f"{file}.en").read_text(encoding="utf-8").splitlines(), seed
        )
        for side, at in (("source", 0), ("target", 1)):
            put(folder, f"backwards.{split}.{side}", [pair[at] for pair in pairs])
    names = ["backwards-rnn", "backwards-rnn-attention", "backwards-transformer"]
    rows = bench.compared("backwards", names, "--seeds", bench.seeds)
    return [
        turned_round(row, [written(bench, run["name"]) for run in row.get("seeds", [row])])
        for row in rows
    ]


def written(bench: Bench, name: str) -> dict[str, Any]:
    """Exact answers of a pair model, greedy, as ``glassformer eval`` counts them, in all and by
    length."""
    files = [f"{WORK}/data/backwards.test.{side}" for side in ("source", "target")]
    query = (
        "--figures",
        "exact",
        "--beams",
        1,
        "--max-new",
        48,
        "--lengths",
        ",".join(map(str, BORDERS)),
        "--json",
    )
    model = WORK / "backwards" / name
    data: dict[str, Any] = json.loads(
        bench.call("eval", model, "--data", files[0], "--target", files[1], *query)
    )
    return data


def turned_round(row: dict[str, Any], result: list[dict[str, Any]]) -> dict[str, Any]:
    """Converts a row of ``compare`` and its tests to the page's form: means over seeds, and by
    length each seed's too."""
    lengths = {}
    for span, group in result[0]["by length"].items():
        seeds = [item["by length"][span]["exact"] for item in result]
        lengths[span] = {"texts": group["texts"], "exact": statistics.fmean(seeds), "seeds": seeds}
    saved = {name: row[name] for name in ("name", "parameters", "tokens", "valid")}
    exact = statistics.fmean(item["exact"] for item in result)
    return {**saved, "seconds": round(row["processor"], 1), "exact": exact, "by length": lengths}


def sentences(bench: Bench) -> list[dict[str, Any]]:
    """SST-2 by all eight: accuracies, parameters and the processor's seconds, under each seed."""
    folder, seeds = bench.folder / WORK / "data", range(bench.seeds)
    for file, split in (("sentences", "train"), ("sentences.dev", "dev")):
        lines = (bench.data / "sst2" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()
        put(folder, f"{file}.txt", [line.split("\t")[0] for line in lines])
    text = WORK / "data" / "sentences.txt"
    kind = ("--kind", "words", "--size", VOCAB, "--special", "[MASK]", "--separator", r"\n")
    bench.make(WORK / "words", "tokens", "train", text, *kind, "--out", WORK / "words")
    reading, losses = dict[str, list[float]](word2vec=[]), dict[str, list[float]]()
    for seed in seeds:
        vectors = WORK / f"vectors.seed-{seed}.bin"
        options = ("--least", 2, "--dim", DIM, "--epochs", EPOCHS, "--seed", seed)
        reading["word2vec"].append(
            bench.make(vectors, "words", "train", text, *options, "--out", vectors)
        )
        averaged = WORK / f"word2vec.seed-{seed}"
        bench.make(averaged, "words", "average", vectors, "--out", averaged)
    under = ("--seeds", bench.seeds)
    for name in READERS:
        (ids,) = bench.compared("read", [f"{name}-reads"], *under)
        reading[name] = [run["processor"] for run in ids.get("seeds", [ids])]
        losses[name] = [run["valid"]["loss"] for run in ids.get("seeds", [ids])]
    rows = bench.compared("labels", [*PEOPLE], *under, "--bag", "--test", "sst2/test.tsv")
    return [labelled(row, reading.get(row["name"]), losses.get(row["name"])) for row in rows]


def labelled(
    row: dict[str, Any], reading: list[float] | None, losses: list[float] | None
) -> dict[str, Any]:
    """Converts a row with labels to the page's form: lists have a figure for each seed and for the
    first text too."""
    runs = row.get("seeds", [row])
    return {
        "name": row["name"],
        "parameters": row["parameters"],
        "accuracy": [run["test"]["accuracy"] for run in runs],
        "valid": [100 * run["valid"]["accuracy"] for run in runs],
        "seconds": [round(run["processor"], 1) for run in runs],
        "reading": None if reading is None else [round(seconds, 1) for seconds in reading],
        "reading loss": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="where the runs go, and go on"
    )
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (all)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="so many steps each, to try the script"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the figures into docs/history.json"
    )
    args = parser.parse_args()
    folder = args.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder, args.steps, 3 if args.steps is None else 1)
    import torch

    work = {"backwards": by_length, "sentences": sentences}
    before: dict[str, Any] = (
        json.loads(KEPT.read_text(encoding="utf-8")) if args.write and KEPT.exists() else {}
    )
    result, topic = dict[str, Any](), dict[str, Any]()
    for piece in args.only:
        rows = work[piece](bench)
        if args.steps is not None:
            losses = {row["name"]: row["valid"]["loss"] for row in rows if piece == "backwards"}
            result["cut"] = {"steps": args.steps, "losses": losses}
            continue
        result[piece] = rows
        topic[piece] = {
            "command": f"{COMMAND} --out FOLDER --only {piece} --write",
            "machine": f"one thread of {platform.machine()}, {os.cpu_count()} cores, torch "
            f"{torch.__version__}",
            "date": date.today().isoformat(),
        }
    topic = {**before.get("about", {}), **topic}  # parts may be run one by one
    message = json.dumps({**before, **result, "about": topic}, indent=1) + "\n"
    if args.write:
        KEPT.write_text(message, encoding="utf-8")
    print(message)


if __name__ == "__main__":
    main()
