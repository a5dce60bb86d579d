"""word2vec beside gensim: words of the text a second and what the vectors are worth, each in a
process of its own.

    python benchmarks/word2vec.py CORPUS [--kinds skip-gram cbow] [--threads 1 2] [--epochs 3]
    [--repeats 3]
        [--similarity FILE ...]

The two alternate on the same sentences, in the same order, with the same settings (100 numbers,
window 5, 5 noise words, words that occur 5 times, 1e-3 of the text thinned out, rate 0.025); only
the epochs are timed. Threads are torch's for us and gensim's workers. --trainer measures beside
them what one step of the house's trainer would cost on the same batch: autograd and AdamW, which
move every row of both tables. Exit 1 where we are below half of its speed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

USUAL = {"dim": 100, "window": 5, "negative": 5, "sample": 1e-3, "rate": 0.025}


def read_sentences(corpus: Path) -> list[list[str]]:
    """The corpus's sentences in a random order, so that neither profits from reading the texts in
    turn."""
    from glassformer.formats.data import find as find_corpus
    from glassformer.tasks.classics import word_index

    results = [*word_index.sentences(find_corpus(str(corpus)).texts())]
    random.Random(0).shuffle(results)
    return results


def our_vectors(
    sentences: list[list[str]], kind: str, threads: int, epochs: int, seed: int
) -> tuple[Any, float]:
    import torch

    from glassformer.tasks.classics import word2vec, word_index

    torch.set_num_threads(threads)
    words = word_index.index_words(sentences, 5)
    model = word2vec.Word2Vec(words, word2vec.Settings(kind, epochs=epochs, seed=seed, **USUAL))
    start = time.perf_counter()
    for _ in model.train():
        pass
    return model.vectors(), time.perf_counter() - start


def gensim_vectors(
    sentences: list[list[str]], kind: str, threads: int, epochs: int, seed: int
) -> tuple[Any, float]:
    from gensim.models import Word2Vec

    from glassformer.tasks.classics.vectors import Vectors

    settings = {
        "vector_size": USUAL["dim"],
        "window": 5,
        "negative": 5,
        "sample": 1e-3,
        "alpha": 0.025,
    }
    model = Word2Vec(
        sg=int(kind == "skip-gram"),
        min_count=5,
        workers=threads,
        epochs=epochs,
        seed=seed + 1,
        **settings,
    )
    model.build_vocab(sentences)
    start = time.perf_counter()
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    seconds = time.perf_counter() - start
    return Vectors(tuple(model.wv.index_to_key), model.wv.vectors), seconds


def spearman(vectors: Any, path: Path) -> float:
    from glassformer.tasks.classics.vectors import read_pairs
    from glassformer.tasks.evaluation import metrics

    listed = [
        (a, b, x) for a, b, x in read_pairs(path) if None not in (vectors.find(a), vectors.find(b))
    ]
    return metrics.of_numbers(
        [vectors.cosine(a, b) for a, b, _ in listed], [x for *_, x in listed]
    )["spearman"]


def train_once(args: argparse.Namespace) -> None:
    """One training in this process; its figures as JSON."""
    sentences = read_sentences(args.corpus)
    who, kind, threads, seed = args.one[0], args.one[1], int(args.one[2]), int(args.one[3])
    vectors, seconds = (our_vectors if who == "ours" else gensim_vectors)(
        sentences, kind, threads, args.epochs, seed
    )
    speed = args.epochs * sum(map(len, sentences)) / seconds
    print(
        json.dumps(
            {"speed": speed, "scores": [spearman(vectors, path) for path in args.similarity]}
        )
    )


def trainer(corpus: Path) -> None:
    """A step of AdamW beside ours, over the same tables and batches."""
    import torch

    from glassformer.tasks.classics import word2vec, word_index

    torch.set_num_threads(1)
    words = word_index.index_words(read_sentences(corpus), 5)
    model = word2vec.Word2Vec(words, word2vec.Settings())
    ids, pos, reach = (row[: model.batch] for row in model._rows(0, min(len(words), 1 << 16)))
    batch = model._prepare(ids, pos, reach)
    tables = [torch.nn.Parameter(table.clone()) for table in (model.inputs, model.outputs)]
    optimizer = torch.optim.AdamW(tables, fused=True)

    def dense() -> None:
        rows = (
            torch.nn.functional.embedding(ids, tables[0])
            @ torch.nn.functional.embedding(ids, tables[1]).mT
        )
        rows.sigmoid().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for name, step in (("ours", lambda: model._learn(batch, 0.0, False)), ("trainer", dense)):
        times = []
        for _ in range(20):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(
            f"a step of {ids.shape[0] * model.row} words, {name}: "
            f"{1000 * statistics.median(times):.2f} ms"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["skip-gram", "cbow"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--similarity", type=Path, nargs="+", default=[])
    parser.add_argument("--trainer", action="store_true")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        train_once(args)
        return 0
    if args.trainer:
        trainer(args.corpus)
        return 0
    print(
        "| kind | threads | ours, words/s | gensim, words/s | ratio | Spearman: ours | gensim "
        "|\n|" + "---|" * 7
    )
    met = True
    for kind in args.kinds:
        for threads in args.threads:
            result: dict[str, list[Any]] = {"ours": [], "gensim": []}
            for seed in range(args.repeats):
                for who, runs in result.items():
                    command = [
                        sys.executable,
                        *sys.argv,
                        "--one",
                        who,
                        kind,
                        str(threads),
                        str(seed),
                    ]
                    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
                    answer = subprocess.run(
                        command, env=environment, check=True, capture_output=True, text=True
                    )
                    runs.append(json.loads(answer.stdout))
            speeds = [[run["speed"] for run in runs] for runs in result.values()]
            ratio = statistics.median(a / b for a, b in zip(*speeds, strict=True))
            cells = [
                f"{statistics.median(s):,.0f} ({min(s):,.0f} to {max(s):,.0f})" for s in speeds
            ]
            scores = [
                ", ".join(
                    f"{statistics.mean(s):.3f} ± {statistics.pstdev(s):.3f}"
                    for s in zip(*(r["scores"] for r in runs), strict=True)
                )
                for runs in result.values()
            ]
            print(
                f"| {kind} | {threads} | {cells[0]} | {cells[1]} | {ratio:.2f} | {scores[0]} | "
                f"{scores[1]} |",
                flush=True,
            )
            met &= ratio >= 0.5
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
