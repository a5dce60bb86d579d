"""Damaged tokenizer files of every format: each opens and is used, or is refused in a sentence,
soon, in little room.

Each file is tried in a process of its own, so that a hang, an abort or a flood of memory is one
finding and no end.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from formats.test_gguf_tokenizer import bpe_fields, written
from glassformer import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from tokenizer.test_bad import MODEL, RANKS, VOCAB
from tokenizer.test_tokenizer import NASTY, STORY, sentencepiece_model

SECONDS, ROOM = 10, 2 << 30  # of processor time, of memory beyond what is there
NUMBERS = [-1, 0, 1, 2**31, 2**32 - 1, 2**63, 10**400, 1.5, 1e308, float("nan")]
VALUES = [
    None,
    True,
    "",
    "a\0b",
    "x" * 6000,
    "(a+)+$",
    r"\s+$",
    "(",
    [],
    {},
    [[]],
    {"type": "Sequence"},
    *NUMBERS,
]


def files(folder: Path) -> dict[str, bytes]:
    """A small good file of each format."""
    trained = {
        f"{kind}/tokenizer.json": train_tokenizer(kind, STORY, size).to_json().encode()
        for kind, size in (("bpe", 300), ("unigram", 60), ("wordpiece", 90))
    }
    return {
        **trained,
        "tiny.model": MODEL,
        "charsmap.model": sentencepiece_model(STORY, vocab_size=40, hard_vocab_limit=False),
        "vocab.txt": VOCAB,
        "ranks.tiktoken": RANKS,
        "vocabulary.gguf": written(folder / "good.gguf", bpe_fields("qwen2")[0]).read_bytes(),
    }


def places(value: Any, result: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every container in a JSON value and a key in it; long lists by a few."""
    pairs = list(value.items())[:40] if isinstance(value, dict) else list(enumerate(value))[:6]
    for key, inner in pairs:
        result.append((value, key))
        if isinstance(inner, dict | list):
            places(inner, result)
    return result


def damaged(data: bytes, name: str, chance: random.Random) -> bytes:
    """The file with a few bytes changed, cut, or (JSON) a few values replaced or dropped."""
    if name.endswith(".json") and chance.random() < 0.8:
        raw = json.loads(data)
        for _ in range(chance.randint(1, 3)):
            second_places, key = chance.choice(places(raw, []))
            try:
                if chance.random() < 0.2:
                    del second_places[key]
                else:
                    second_places[key] = chance.choice(VALUES)
            except (KeyError, IndexError):
                continue
        return json.dumps(raw).encode()
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(
        changed[: len(changed) if chance.random() < 0.6 else chance.randrange(1, len(changed))]
    )


def use(path: Path) -> None:
    """Open the file and do with it all that is done with a tokenizer."""
    tokenizer = open_tokenizer(path, kind="gpt2" if path.suffix == ".tiktoken" else None)
    samples = [*NASTY[:20], "a" * 40 + "b", " " * 3000 + "a", STORY[0]]
    for sample in samples:
        try:
            ids = tokenizer.encode(sample, special=True)
        except UserError:
            continue
        tokenizer.decode(ids, special=True)
        stream = tokenizer.stream()
        _ = [stream.push(id) for id in ids]
        tokenizer.offsets(sample)
    tokenizer.encode_pair("a", "b")
    assert from_json(tokenizer.to_json()).fingerprint == tokenizer.fingerprint


def alone(work: Callable[[], None], report: Path) -> str:
    """Failure in a process of its own: none, a traceback, or the exit status."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_CPU, (3 * SECONDS, 3 * SECONDS + 1))
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ROOM, size + ROOM))
            began = time.process_time()
            work()
            if time.process_time() - began > SECONDS:
                report.write_text(f"{time.process_time() - began:.0f} seconds")
            else:
                code = 0
        except UserError as error:
            sentence = str(error)
            code = int("\n" in sentence or len(sentence) > 1500)
            report.write_text(f"the sentence: {sentence[:300]!r}")
        except BaseException:
            report.write_text(traceback.format_exc()[-1500:])
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return report.read_text() if os.WEXITSTATUS(status) else ""


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")
@pytest.mark.parametrize("turns", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_a_damaged_file_is_used_or_refused(turns, tmp_path, monkeypatch):
    pytest.importorskip("sentencepiece")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # its threads do not live on in a fork
    findings: dict[str, str] = {}
    for name, data in files(tmp_path).items():
        chance = random.Random(name)
        path = tmp_path / "damaged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for turn in range(turns):
            path.write_bytes(damaged(data, name, chance))
            result = alone(lambda path=path: use(path), tmp_path / "report")
            if result:
                findings[f"{name} {turn}"] = result
                (tmp_path / f"{turn}-{path.name}").write_bytes(path.read_bytes())
    assert not findings, f"{len(findings)} findings, files in {tmp_path}: {findings}"
