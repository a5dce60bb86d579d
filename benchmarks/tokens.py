"""Encoding with GPT-2's vocabulary: the tokenizers library, tiktoken and ours, on one string, in a
batch, on a corpus.

    GLASSFORMER_DATA=FOLDER python benchmarks/tokens.py [--repeats 5] [--threads 2] [--profile]

First 1.1 MB of Shakespeare as one string and in pieces of 64 K characters, the ids the same for
all. Then `tokenise` of whole corpora (reading, hashing, encoding, writing to the disk) beside what
the faster engine needs to encode the same text held in memory; both made anew for each turn, which
is not counted. Exit 1 where a corpus is tokenised at less than 90 % of that.
"""

from __future__ import annotations

import argparse
import base64
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str

from glassformer.formats import tiktoken_backend
from glassformer.formats.data import Source, tokenise
from glassformer.formats.data import find as find_corpus
from glassformer.formats.tokenizer_files import open as open_tokenizer

SHAKESPEARE = "tinyshakespeare/input.txt"
ALL = ("tinystories/*.txt", "multi30k/train.*", "wikitext-2-raw/*.raw", "tinyshakespeare/*.txt")
CORPORA = {
    "Shakespeare": (SHAKESPEARE,),
    "TinyStories": ALL[:1],
    "Multi30k": ALL[1:2],
    "all of these": ALL,
}
AIM = 0.9


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of ``work``."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peer(data: Path) -> tiktoken.Encoding:
    """tiktoken with GPT-2's ranks."""
    lines = (line.split() for line in (data / "tok-gpt2/gpt2.tiktoken").read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={})


def one_text(data: Path, repeats: int, threads: int) -> None:
    """The engines on Shakespeare in memory."""
    path = data / SHAKESPEARE
    text = path.read_text(encoding="utf-8")
    pieces = [piece.text for piece in find_corpus(path).pieces()]
    actual, reference = open_tokenizer(data / "tok-gpt2"), peer(data)
    library = actual._plain
    expected = reference.encode_ordinary(text)
    assert library.encode(text, add_special_tokens=False).ids == expected == actual.encode(text)
    assert [id for ids in actual.encode_batch(pieces) for id in ids] == expected

    rows: list[tuple[str, Callable[[], Any]]] = [
        ("tokenizers, one string", lambda: library.encode(text, add_special_tokens=False).ids),
        (
            "tokenizers, batch",
            lambda: [e.ids for e in library.encode_batch_fast(pieces, add_special_tokens=False)],
        ),
        ("tiktoken, one string", lambda: reference.encode_ordinary(text)),
        ("tiktoken, batch", lambda: reference.encode_ordinary_batch(pieces, num_threads=threads)),
        ("ours, one string", lambda: actual.encode(text)),
        ("ours, batch", lambda: actual.encode_batch(pieces)),
        ("ours, arrays", lambda: actual.encoder(len(text))(pieces)),
    ]
    size = len(text.encode()) / 1e6
    print(f"| {size:.2f} MB of Shakespeare, GPT-2 | MB/s |\n|---|---|")
    for name, work in rows:
        print(f"| {name} | {size / seconds(work, repeats):.1f} |")
    result = (
        seconds(lambda: tiktoken_backend.of(actual._spec, library), repeats),
        seconds(lambda: peer(data), repeats),
    )
    print(
        f"\nOurs is made and proven in {1e3 * result[0]:.0f} ms, tiktoken's tables in "
        f"{1e3 * result[1]:.0f}."
    )


def corpora(data: Path, repeats: int, threads: int, profile: bool) -> bool:
    """Whole corpora from file to shards, beside the faster engine on the text in memory."""
    met = True
    print("\n| corpus | MB | tokenise, MB/s | tiktoken, MB/s | ratio |\n|---|---|---|---|---|")
    for name, patterns in CORPORA.items():
        paths = [
            p for pattern in patterns for p in sorted(data.glob(pattern)) if p.name != "SOURCE.txt"
        ]
        source = Source(
            name,
            data,
            tuple(corpus_file for path in paths for corpus_file in find_corpus(path).corpus_files),
        )
        pieces = [piece.text for piece in source.pieces()]
        size = sum(len(piece.encode()) for piece in pieces) / 1e6
        peers, actual = [], []
        for _ in range(repeats):
            tokenizer, reference = open_tokenizer(data / "tok-gpt2"), peer(data)
            tokenizer.fingerprint  # noqa: B018 - known to who has the tokenizer, once
            tokenizer.backend  # noqa: B018 - as tiktoken's tables are made before
            peers.append(
                seconds(partial(reference.encode_ordinary_batch, pieces, num_threads=threads), 1)
            )
            with tempfile.TemporaryDirectory() as folder:
                watch = cProfile.Profile()
                if profile:
                    watch.enable()
                actual.append(seconds(partial(tokenise, source, tokenizer, cache=Path(folder)), 1))
                watch.disable()
        ratio = statistics.median(a / b for a, b in zip(peers, actual, strict=True))
        met = met and ratio >= AIM
        speeds = f"{size / statistics.median(actual):.1f} | {size / statistics.median(peers):.1f}"
        print(f"| {name} | {size:.1f} | {speeds} | {ratio:.2f} |")
        if profile:
            pstats.Stats(watch).sort_stats("tottime").print_stats(12)
    return met


def main() -> int:
    """Both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    data = Path(os.environ.get("GLASSFORMER_DATA", "../shared/data"))
    if not (data / "tok-gpt2").is_dir():
        print(
            "Set GLASSFORMER_DATA to the folder with tok-gpt2 and the corpora in it.",
            file=sys.stderr,
        )
        return 2
    one_text(data, args.repeats, args.threads)
    return 0 if corpora(data, args.repeats, args.threads, args.profile) else 1


if __name__ == "__main__":
    raise SystemExit(main())
