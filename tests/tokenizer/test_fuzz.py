"""Damaged tokenizer files of every format: each opens and is used, or is refused in a sentence,
soon, in little room.

Each file is tried in a process of its own, so that a hang, an abort or a flood of memory is one
finding and no end.
"""

from __future__ import annotations

import random
import sys

import pytest

from formats.test_gguf_tokenizer import bpe_fields, written
from fuzzing import damaged, damaged_json, outcome
from glassformer import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from tokenizer.test_bad import MODEL, RANKS, VOCAB
from tokenizer.test_tokenizer import NASTY, STORY, sentencepiece_model

ROOM = 2 << 30  # bytes of memory beyond what is there
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


def files(folder):
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


def use(path):
    """Open the file and do with it all that is done with a tokenizer."""
    tokenizer = open_tokenizer(path, kind="gpt2" if path.suffix == ".tiktoken" else None)
    for sample in [*NASTY[:20], "a" * 40 + "b", " " * 3000 + "a", STORY[0]]:
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
    return "used"


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")
@pytest.mark.parametrize("turns", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_a_damaged_file_is_used_or_refused(turns, tmp_path, monkeypatch):
    pytest.importorskip("sentencepiece")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # its threads do not live on in a fork
    findings = {}
    for name, data in files(tmp_path).items():
        chance = random.Random(name)
        path = tmp_path / "damaged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for turn in range(turns):
            tree = name.endswith(".json") and chance.random() < 0.8
            harm = damaged_json(data, chance, VALUES) if tree else damaged(data, chance)
            path.write_bytes(harm)
            result = outcome(lambda path=path: use(path), ROOM)
            if result not in ("used", "refused"):
                findings[f"{name} {turn}"] = result
                (tmp_path / f"{turn}-{path.name}").write_bytes(harm)
    assert not findings, f"{len(findings)} findings, files in {tmp_path}: {findings}"
