"""Words that are remembered give the library's ids: on nasty, random and real texts, and for every character."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from glassformer import text
from glassformer.text import memory
from test_tokenizer import NASTY, SPECIAL

TIGHT = " \n\t\r'sStTaA1!\xa0é²ſ你"
WIDE = [chr(i) for i in range(128)] + list("éßñ你ſK\u00a0\u2028\u0301½²٣🎵𝟙𓂀\u1680\x85ªº一\ufeff\x1c\x1f")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one character is looked up in the memory."""
    monkeypatch.setattr(memory, "SHORT", 0)


def randoms(count: int) -> list[str]:
    chance = random.Random(5)
    found = []
    for at in range(count):
        letters = (TIGHT, WIDE, WIDE[:128], [chr(i) for i in range(0x20, 0x3000)])[at % 4]
        found.append("".join(chance.choices(letters, k=chance.randrange(1, 10))))
    return found


def same(tokenizer: text.Tokenizer, samples: list[str]) -> int:
    """How many of the texts the memory could read; each to the library's ids."""
    known = tokenizer._memory
    assert known is not None
    read = 0
    for sample in samples:
        ids = known.ids(sample)
        if ids is not None:
            read += 1
            assert ids.tolist() == tokenizer._plain.encode(sample, add_special_tokens=False).ids, repr(sample)
    return read


def real(folder: Path) -> list[str]:
    names = ("tinyshakespeare/input.txt", "wikitext-2-raw/wiki.test.raw", "multi30k/train.de", "multi30k/train.fr")
    return [(folder / name).read_text(encoding="utf-8")[:40_000] for name in names]


def test_gpt2_by_words_is_the_library(shared_data: Path, short: None) -> None:
    tokenizer = text.open(shared_data / "tok-gpt2")
    samples = [*NASTY, *SPECIAL, *randoms(2_000), *real(shared_data)]
    assert same(tokenizer, samples) > 0.6 * len(samples)
    assert all(tokenizer._memory is not None and tokenizer._memory.ids(one) is not None for one in real(shared_data))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tok-cl100k", "tok-llama3", "tok-qwen"])
def test_other_published_splits_by_words_are_the_library(shared_data: Path, short: None, name: str) -> None:
    tokenizer = text.open(shared_data / name)
    samples = [*NASTY, *SPECIAL, *randoms(60_000), *real(shared_data)]
    assert same(tokenizer, samples) > 0.3 * len(samples)


def test_gpt4s_split_on_a_small_vocabulary(short: None) -> None:
    """The pattern and a trained model; the published vocabularies are slow to load."""
    import json

    raw = json.loads(text.train("bpe", ["the cat sat on the mat, 1234 times!\n"] * 9, 300).to_json())
    level = {**raw["pre_tokenizer"], "use_regex": False}
    for digits in ("{1,3}", ""):
        pattern = {"Regex": memory.WORDS.format(digits=digits)}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
        tokenizer = text.Tokenizer.from_json(json.dumps(raw))
        samples = [*NASTY, *SPECIAL, *randoms(1_200)]
        assert same(tokenizer, samples) > 0.6 * len(samples)


def test_each_character_is_what_it_is_here_or_is_left_to_the_library(short: None) -> None:
    tokenizer = text.train("bpe", ["a b"], 257)
    known = tokenizer._memory
    assert known is not None
    letters = [chr(i) for i in range(0x12000) if not 0xD800 <= i < 0xE000]
    for at in range(0, len(letters), 512):
        known._prove(set(letters[at : at + 512]))
    assert memory.FOLDED in known.strange and len(known.strange) < 0.5 * len(letters)
    plain = [letter for letter in letters if letter in known.proven]
    assert len(plain) > 55_000
    chance = random.Random(1)
    for _ in range(1000):
        sample = "".join(chance.choices(plain, k=20))
        assert known.ids(sample) is not None
        assert same(tokenizer, [sample]) == 1


def test_what_does_not_go_word_by_word_has_no_memory(shared_data: Path) -> None:
    for name in ("tok-bert-cased", "tok-t5", "tok-llama2/tokenizer.model", "tok-starcoder"):
        assert text.open(shared_data / name)._memory is None
    assert text.train("char", ["ab"])._memory is None and text.train("byte")._memory is None


def test_the_face_of_the_tokenizer_is_the_same(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = text.train("bpe", ["a glass house of glass"] * 9, 270)
    samples = ["a glass house", "", "<|endoftext|>x", "é glass", "ſ"]
    lists = tokenizer.encode_batch(samples, eos=True)
    assert [list(ids) for ids in tokenizer.encode_arrays(samples)] == [ids[:-1] for ids in lists]
    assert all(type(ids) is list and type(ids[0]) is int for ids in lists)
    assert tokenizer.eos in tokenizer.encode("<|endoftext|>x", special=True)
    monkeypatch.setattr(memory, "MOST", 2)
    assert tokenizer.encode_batch(samples, eos=True) == lists
    with pytest.raises(text.tokenizer.UserError, match="surrogate"):
        tokenizer.encode("half \ud800")
