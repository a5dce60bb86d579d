"""tiktoken gives the library's ids: on nasty, random and real texts, and for every character."""

from __future__ import annotations

import json
import random

import pytest

from glassformer.core.tokenizer import tokenizer as face
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.tokenizer.detokenizer import byte_alphabet
from glassformer.formats import tiktoken_backend as backend
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from mistakes import mistake
from tokenizer.test_tokenizer import NASTY, SPECIAL

TIGHT = " \n\t\r'sStTaA1!\xa0é²ſ你"
WIDE = [chr(i) for i in range(128)] + list(
    "éßñ你ſK\u00a0\u2028\u0301½²٣🎵𝟙𓂀\u1680\x85ªº一\ufeff\x1c\x1f"
)


@pytest.fixture
def short(monkeypatch):
    """Even one character goes to tiktoken."""
    monkeypatch.setattr(face, "LARGE", 0)


def randoms(count):
    chance = random.Random(5)
    results = []
    for at in range(count):
        letters = (TIGHT, WIDE, WIDE[:128], [chr(i) for i in range(0x20, 0x3000)])[at % 4]
        results.append("".join(chance.choices(letters, k=chance.randrange(1, 10))))
    return results


def count_equal(tokenizer, samples):
    """Number of texts that tiktoken could read; each gives the library's ids."""
    second = tokenizer._tiktoken
    assert second is not None
    second_ids = 0
    for sample in samples:
        ids = second.encode(sample)
        if ids is not None:
            second_ids += 1
            assert ids.tolist() == tokenizer._plain.encode(sample, add_special_tokens=False).ids, (
                repr(sample)
            )
    return second_ids


def real(folder, most=40_000):
    names = (
        "tinyshakespeare/input.txt",
        "wikitext-2-raw/wiki.test.raw",
        "multi30k/train.de",
        "multi30k/train.fr",
    )
    return [(folder / name).read_text(encoding="utf-8")[:most] for name in names]


def words(tokenizer, count):
    """Words that are hard on merges: one or two entries again and again, and entries in the middle
    of entries."""
    chance = random.Random(3)
    names = [
        name for name in (tokenizer.decode([id]) for id in range(256, 20_000, 7)) if name.isalpha()
    ]
    results = []
    for at in range(count):
        first, second = chance.choices(names, k=2)
        cut = chance.randrange(len(first) + 1)
        runs = "".join(chance.choices("abe-= 0", k=chance.randrange(1, 4))) * chance.randrange(
            2, 40
        )
        results.append((first[:cut] + second + first[cut:], first * 7 + second * 5, runs)[at % 3])
    return results


def test_gpt2_is_the_library(shared_data):
    tokenizer = open_tokenizer(shared_data / "tok-gpt2")
    samples = [*NASTY, *SPECIAL, *randoms(2_000), *real(shared_data), *words(tokenizer, 3_000)]
    assert count_equal(tokenizer, samples) > 0.7 * len(samples)
    assert all(
        tokenizer._tiktoken is not None and tokenizer._tiktoken.encode(item) is not None
        for item in real(shared_data)
    )


def test_a_file_of_ranks_is_encoded_without_a_copy_in_the_library(shared_data):
    """Opening costs what tiktoken costs; the merges are listed, and the library's copy made, where
    they are needed."""
    tokenizer = open_tokenizer(shared_data / "tok-gpt2" / "gpt2.tiktoken")
    samples = [*NASTY, *SPECIAL, *randoms(200), *real(shared_data)]
    ready = [text for text in samples if "ſ" not in text]
    result = tokenizer.encode_batch(ready)
    assert tokenizer.decode(result[-1]) == ready[-1]
    assert tokenizer._tiktoken
    assert {"_plain", "_spec", "_special"}.isdisjoint(vars(tokenizer))
    listed = from_json(tokenizer.to_json())
    assert result == [listed._plain.encode(text, add_special_tokens=False).ids for text in ready]
    assert tokenizer.encode("ſ") == listed.encode("ſ")
    assert "_plain" in vars(tokenizer)
    assert tokenizer.fingerprint == listed.fingerprint
    assert (
        tokenizer.encode("<|endoftext|>", special=True)
        == [tokenizer.eos]
        != tokenizer.encode("<|endoftext|>")
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tok-gpt2", "tok-cl100k", "tok-llama3", "tok-qwen"])
def test_published_tokenizers_on_much_text_are_the_library(shared_data, name):
    tokenizer = open_tokenizer(shared_data / name)
    samples = [
        *NASTY,
        *SPECIAL,
        *randoms(60_000),
        *real(shared_data, None),
        *words(tokenizer, 60_000),
    ]
    assert count_equal(tokenizer, samples) > 0.5 * len(samples)


def small(**changes):
    """A small trained BPE whose model is then changed."""
    raw = json.loads(
        train_tokenizer("bpe", ["the cat sat on the mat, 1234 times!\n"] * 9, 300).to_json()
    )
    raw["model"] |= changes
    return from_json(json.dumps(raw))


def test_gpt4s_split_on_a_small_vocabulary():
    """The pattern and a trained model; the published vocabularies are slow to load."""
    raw = json.loads(small().to_json())
    level = {**raw["pre_tokenizer"], "use_regex": False}
    for digits in ("{1,3}", ""):
        pattern = {"Regex": backend.WORDS.format(digits=digits)}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        raw["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, level]}
        tokenizer = from_json(json.dumps(raw))
        samples = [*NASTY, *SPECIAL, *randoms(1_200)]
        assert count_equal(tokenizer, samples) > 0.6 * len(samples)


def test_each_character_is_the_same_to_both_or_is_left_to_the_library():
    tokenizer = train_tokenizer("bpe", ["a b"], 257)
    second = tokenizer._tiktoken
    assert second is not None
    letters = [chr(i) for i in range(0x12000) if not 0xD800 <= i < 0xE000 and chr(i) != "ſ"]
    assert second.encode("ſ") is None
    assert second.encode("\ud800") is None
    plain = [letter for letter in letters if backend.comparable(letter)]
    assert len(plain) > 0.99 * len(letters)
    chance = random.Random(1)
    for _ in range(1000):
        sample = "".join(chance.choices(plain, k=20))
        assert second.encode(sample) is not None
        assert count_equal(tokenizer, [sample]) == 1


def test_a_character_that_splits_otherwise_is_found(monkeypatch):
    """The proof can fail: engines that took é for different things would be told apart."""
    second = train_tokenizer("bpe", ["a b"], 257)._tiktoken
    assert second is not None
    assert second.encode("né") is not None
    (letters, _), *engines = backend._engines()
    from tokenizers import Regex, normalizers

    without = normalizers.Replace(Regex(r"\P{L}|é"), "")
    monkeypatch.setattr(backend, "_engines", lambda: [(letters, without), *engines])
    monkeypatch.setattr(backend, "_status", backend._status.copy())
    backend._status[ord("é")] = 0
    assert second.encode("né") is None
    assert second.encode("ne") is not None


def test_what_is_not_proven_has_no_tiktoken(shared_data):
    for name in ("tok-bert-cased", "tok-t5", "tok-llama2/tokenizer.model", "tok-starcoder"):
        assert open_tokenizer(shared_data / name)._tiktoken is None
    assert train_tokenizer("char", ["ab"])._tiktoken is None
    assert train_tokenizer("byte")._tiktoken is None


def test_merges_that_tiktoken_would_do_otherwise_have_no_tiktoken():
    model = json.loads(small().to_json())["model"]
    pairs = model["merges"]
    vocabulary = model["vocab"]
    assert small()._tiktoken is not None
    # another order than the ids
    assert small(merges=[pairs[1], pairs[0], *pairs[2:]])._tiktoken is None
    assert small(merges=pairs[:-1])._tiktoken is None  # an entry that nothing makes
    assert small(
        merges=pairs[:-1], vocab={k: v for k, v in vocabulary.items() if k != "".join(pairs[-1])}
    )._tiktoken
    # an entry that has its pair, but whose own letters join otherwise before: "abc" is a + bc, and
    # comes out as ab + c
    result = {letter: at for at, letter in enumerate(byte_alphabet().values())}
    result |= {"ab": 256, "bc": 257, "abc": 258}
    one_way = {"vocab": result, "merges": [["a", "b"], ["b", "c"], ["ab", "c"]]}
    assert small(**one_way)._tiktoken is not None
    # whole words first, and a list that is not every cut
    assert small(**one_way, ignore_merges=True)._tiktoken is None
    odd = small(vocab=result, merges=[["a", "b"], ["b", "c"], ["a", "bc"]])
    assert odd._tiktoken is None
    assert [odd.token(id) for id in odd.encode("abc")] == ["ab", "c"]


def test_the_face_of_the_tokenizer_is_the_same(short, monkeypatch):
    tokenizer = train_tokenizer("bpe", ["a glass house of glass"] * 9, 270)
    samples = ["a glass house", "", "<|endoftext|>x", "é glass", "ſ"]
    lists = tokenizer.encode_batch(samples, eos=True)
    assert [list(ids) for ids in tokenizer.encoder(face.LARGE)(samples)] == [
        ids[:-1] for ids in lists
    ]
    assert all(type(ids) is list and type(ids[0]) is int for ids in lists)
    assert tokenizer.eos in tokenizer.encode("<|endoftext|>x", special=True)
    monkeypatch.setattr(face, "LARGE", 1 << 30)
    assert tokenizer.encode_batch(samples, eos=True) == lists
    for wrong in ("half \ud800", 3):
        with mistake(r"surrogate|this is a int"):
            tokenizer.encode_batch(["a", wrong])
        with mistake(r"surrogate|this is a int"):
            tokenizer.encoder(face.LARGE)(["a", wrong])


def test_a_panic_of_the_encoding_is_left_to_the_library(monkeypatch):
    tokenizer = train_tokenizer("bpe", ["a b"], 257)
    second = tokenizer._tiktoken
    assert second is not None

    class Panic(BaseException):
        pass

    class Broken:
        def encode_to_numpy(self, *_, **__):
            raise Panic

    monkeypatch.setattr(second, "encoding", Broken())
    assert second.encode("a b") is None
    assert [list(ids) for ids in tokenizer.encoder(face.LARGE)(["a b"])] == [
        tokenizer.encode("a b")
    ]


def test_a_new_script_costs_one_comparison_a_text_and_is_then_known(
    monkeypatch,
):
    tokenizer = small()
    compare = backend.strange_characters
    letters = []
    monkeypatch.setattr(backend, "_status", backend._status.copy())
    backend._status[0x4E00:0x5000] = 0
    monkeypatch.setattr(
        backend, "strange_characters", lambda text: letters.append(text) or compare(text)
    )
    text = "".join(chr(0x4E00 + number) * 3 for number in range(400))
    assert [list(ids) for ids in tokenizer.encoder(face.LARGE)([text, text[::-1]])] == [
        tokenizer.encode(text),
        tokenizer.encode(text[::-1]),
    ]
    assert letters == [text[::3]]
