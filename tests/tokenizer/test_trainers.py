"""``tokens train`` and ``tokens sizes``: every kind is opened by transformers and by us; slips are
one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_trainers import TRAINED
from glassformer.sight.tokens.vocabulary_size import sizes
from mistakes import SENTENCES, mistake
from tokenizer.test_tokenizer import IDENTITY, NASTY, sentencepiece_model

STORY = (
    "Once upon a time there was a little glass house.\nIts walls were clear; you could see "
    "through! \n"
)
OTHER = STORY + "\n\n  The  house, 12 walls of glass.\n"


@pytest.fixture
def story(tmp_path):
    (tmp_path / "story.txt").write_text(STORY * 30, encoding="utf-8")
    return tmp_path / "story.txt"


SIZES = {"bpe": 300, "byte": 257, "char": len(set(STORY)) + 1}


@pytest.mark.parametrize("kind", TRAINED)
def test_what_is_trained_is_opened_by_transformers_and_by_us(kind, story, tmp_path, terminal):
    transformers = pytest.importorskip("transformers")
    out = tmp_path / kind
    most = SIZES.get(kind, 90)
    size = "" if kind in ("char", "byte") else f"--size {most}"
    written = terminal(f"tokens train {story} --kind {kind} {size} --out {out}")
    assert str(out / "tokenizer.json") in written
    actual = open_tokenizer(out)
    reference = transformers.AutoTokenizer.from_pretrained(out)
    nasty = NASTY if kind in ("byte", "bpe") else []
    for sample in [STORY, OTHER, *nasty] if kind != "char" else [STORY]:
        ids = actual.encode(sample)
        assert reference.encode(sample, add_special_tokens=False) == ids
        if kind in ("bpe", "unigram", "char", "byte") and sample not in nasty:
            text = actual.decode([id for id in ids if id != actual.unk])
            assert text.replace(" ", "").startswith("Onceupona")
            assert kind == "unigram" or actual.decode(ids) == sample
    assert reference.eos_token_id == actual.eos
    assert len(reference) == actual.size
    assert actual.size == most or (actual.size < most and kind in ("words", "unigram", "wordpiece"))


def test_the_text_of_jsonl_may_have_another_name(tmp_path, terminal):
    (tmp_path / "talks.jsonl").write_text('{"talk": "a glass house"}\n' * 600)
    for command in (f"train --size 260 --out {tmp_path}/a", "sizes --sizes 260"):
        verb, options = command.split(" ", 1)
        line = f"tokens {verb} {tmp_path}/talks.jsonl {options}"
        assert "--field" in terminal.refused(line)
        terminal(f"{line} --field talk")


def test_a_unigram_keeps_every_space_and_line():
    tokenizer = train_tokenizer("unigram", [STORY] * 9, 80)
    assert tokenizer.decode(tokenizer.encode(STORY)) == STORY
    assert tokenizer.unk in tokenizer.encode("glass 🎵")


def test_a_unigram_is_sentencepieces(shared_data):
    """Pieces and scores of its trainer on lines; so a held-out text has as many tokens, and no
    piece crosses a line."""
    sentencepiece = pytest.importorskip("sentencepiece")
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text()
    train = text[:200_000]
    stored = text[200_000:230_000]
    actual = train_tokenizer("unigram", [train], 700)
    model = sentencepiece_model(
        train.split("\n"),
        vocab_size=697,
        model_type="unigram",
        character_coverage=1.0,
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        num_threads=1,
        **IDENTITY,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    lines = stored.split("\n")
    count = sum(len(processor.encode(line)) for line in lines) + len(lines) - 1
    assert abs(len(actual.encode(stored)) - count) < 0.005 * count
    assert not [name for name in actual.vocabulary() if "\n" in name and name != "\n"]
    assert actual.decode(actual.encode(stored)) == stored


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "words"])
def test_nothing_is_learnt_across_or_of_a_special_token(kind, tmp_path, terminal):
    (tmp_path / "two.txt").write_text("glass house<|endoftext|>glass wall<|im_end|>\n" * 60)
    size = 330 if kind == "bpe" else 60
    line = f"tokens train {tmp_path}/two.txt --kind {kind} --size {size} --out {tmp_path}"
    terminal(f"{line}/a --special <|endoftext|>")
    notes = terminal.notes
    assert '"<|im_end|>" is in this text 60 times' in notes
    assert "<|endoftext|>" not in notes
    plain = open_tokenizer(tmp_path / "a")
    learnt = plain.vocabulary().keys() - plain.specials.keys()
    assert "<|endoftext|>" in plain.specials
    assert not [name for name in learnt if "endof" in name or "houseg" in name]
    assert any("_" in name for name in learnt), "what is not said to be special is text"
    terminal(f"{line}/b --separator <|endoftext|> --special <|im_end|>")
    assert "learnt as text" not in terminal.notes
    names = open_tokenizer(tmp_path / "b").vocabulary()
    assert not [name for name in names if "endof" in name and name[:2] != "<|"]


def test_letters_of_wordpiece_are_those_of_its_words():
    from glassformer.core.tokenizer.tokenizer import open_library
    from glassformer.formats import tokenizer_trainers

    odd = "don't stop, 漢字かな é e\u0301 a\u200bb naïve—yes x\ty\u00a0z C3PO №5 a.b # ## x#"
    library = open_library(train_tokenizer("wordpiece", [odd], 200, None).spec, "The tokenizer")
    pieces = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(odd))
    words = [word for word, _ in pieces]
    inner = {f"##{letter}" for word in words for letter in word[1:]}
    assert tokenizer_trainers._word_letters(library, [odd]) == sorted({*"".join(words), *inner})


def test_wordpiece_is_like_berts():
    tokenizer = train_tokenizer("wordpiece", [STORY] * 9, 90)
    assert tokenizer.size == 90
    assert {"[CLS]", "[SEP]", "[UNK]"} <= tokenizer.specials.keys()
    assert tokenizer.encode_pair("glass")[0][0] == tokenizer.cls
    assert any(name.startswith("##") for name in tokenizer.vocabulary())
    assert tokenizer.unk in tokenizer.encode("🎵")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "char", "words"])
def test_the_same_text_gives_the_same_tokenizer(kind):
    size = {"bpe": 300, "wordpiece": 90, "unigram": 60}.get(kind)
    assert len({train_tokenizer(kind, [STORY] * 5, size).fingerprint for _ in range(4)}) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_a_size_below_the_alphabet_says_what_is_needed(kind, story, tmp_path, terminal):
    out = tmp_path / "none"
    notes = terminal.refused(f"tokens train {story} --kind {kind} --size 12 --out {out}")
    assert notes.count("\n") == 1
    assert "give a" in notes
    assert not out.exists()
    least = 257 if kind == "bpe" else int(notes.split("size of ")[1].split()[0])
    assert train_tokenizer(kind, [STORY] * 30, least).size <= least


@pytest.mark.parametrize(
    "line, sentence",
    SENTENCES["tokens"].items(),
)
def test_slips_are_one_sentence(story, monkeypatch, terminal, line, sentence):
    monkeypatch.chdir(story.parent)
    Path("bad.txt").write_bytes(b"good\nbad \xff\n")
    Path("blank.txt").write_text(" \n \n")
    Path("few.txt").write_text("a b")
    notes = terminal.refused(f"tokens {line}")
    assert sentence in notes
    assert notes.count("\n") == 1
    assert not Path("x").exists()


def test_sizes_show_the_trade_off(story, terminal):
    line = f"tokens sizes {story} --sizes 260 280 300 --dim 64"
    assert "█" in terminal(line)
    data = terminal.json(line)["sizes"]
    assert [size["entries"] for size in data] == [260, 280, 300]
    assert [size["parameters"] for size in data] == [260 * 64, 280 * 64, 300 * 64]
    falling = [size["tokens_per_word"] for size in data]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > falling[-1] > 1


def test_sizes_are_counted_on_text_that_was_held_out():
    body = "one two three four five six seven eight nine\n" * 27
    observed, new = (
        sizes("bpe", [body + "\n".join([last] * 3) + "\n"], [300])[0]
        for last in (body[:44], "zyx wvu tsr " * 4)
    )
    assert new.tokens_per_word > 1.5 * observed.tokens_per_word
    with mistake("leave out the size"):
        sizes("char", [body])
