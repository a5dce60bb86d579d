"""``tokens train`` and ``tokens sizes``: every kind is opened by transformers and by us; slips are one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer import UserError, text
from glassformer.cli import main
from glassformer.text.sizes import sizes
from glassformer.text.trainers import TRAINED

STORY = "Once upon a time there was a little glass house.\nIts walls were clear; you could see through! \n"
OTHER = STORY + "\n\n  The  house, 12 walls of glass.\n"


@pytest.fixture
def story(tmp_path: Path) -> str:
    (tmp_path / "story.txt").write_text(STORY * 30, encoding="utf-8")
    return str(tmp_path / "story.txt")


def size_of(kind: str) -> list[str]:
    return [] if kind in ("char", "byte") else ["--size", "300" if kind == "bpe" else "90"]


@pytest.mark.parametrize("kind", TRAINED)
def test_what_is_trained_is_opened_by_transformers_and_by_us(
    kind: str, story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / kind
    assert main(["tokens", "train", story, "--kind", kind, *size_of(kind), "--out", str(out)]) == 0
    assert str(out / "tokenizer.json") in capsys.readouterr().out
    ours = text.open(out)
    samples = [STORY, OTHER] if kind != "char" else [STORY]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    for sample in samples:
        ids = ours.encode(sample)
        assert theirs.encode(sample, add_special_tokens=False) == ids
        if kind in ("bpe", "unigram", "char", "byte"):
            assert ours.decode([id for id in ids if id != ours.unk]).replace(" ", "").startswith("Onceupona")
            assert kind == "unigram" or ours.decode(ids) == sample
    fits = {"bpe": 300, "byte": 257, "char": len(set(STORY)) + 1}.get(kind, 90)
    assert ours.size <= fits and (ours.size == fits or kind in ("words", "unigram", "wordpiece"))


def test_a_unigram_keeps_every_space_and_line() -> None:
    tokenizer = text.train("unigram", [STORY] * 9, 80)
    assert tokenizer.decode(tokenizer.encode(STORY)) == STORY
    assert tokenizer.unk in tokenizer.encode("glass 🎵")


def test_wordpiece_is_like_berts() -> None:
    tokenizer = text.train("wordpiece", [STORY] * 9, 90)
    assert tokenizer.size == 90 and {"[CLS]", "[SEP]", "[UNK]"} <= tokenizer.specials.keys()
    assert tokenizer.encode_pair("glass")[0][0] == tokenizer.cls
    assert any(name.startswith("##") for name in tokenizer.vocabulary())
    assert tokenizer.unk in tokenizer.encode("🎵")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char", "words"])
def test_the_same_text_gives_the_same_tokenizer(kind: str) -> None:
    size = {"bpe": 300, "wordpiece": 90}.get(kind)
    assert len({text.train(kind, [STORY] * 5, size).fingerprint for _ in range(4)}) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_a_size_below_the_alphabet_says_what_is_needed(
    kind: str, story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "none"
    assert main(["tokens", "train", story, "--kind", kind, "--size", "12", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "give a" in told and not out.exists()
    least = 257 if kind == "bpe" else int(told.split("size of ")[1].split()[0])
    assert text.train(kind, [STORY] * 30, least).size <= least


def test_slips_are_one_sentence(story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good\nbad \xff\n")
    (tmp_path / "blank.txt").write_text(" \n \n")
    (tmp_path / "few.txt").write_text("a b")
    slips = {
        "--out DIR": ["train", story],
        'Did you mean "unigram"': ["train", story, "--kind", "unigrm", "--out", "x"],
        "not UTF-8 text (byte 9)": ["train", str(tmp_path / "bad.txt"), "--out", str(tmp_path / "x")],
        "no word": ["train", str(tmp_path / "blank.txt"), "--kind", "wordpiece", "--out", str(tmp_path / "x")],
        "too few words": ["sizes", str(tmp_path / "few.txt")],
        "neither .png nor .svg": ["sizes", story, "--out", "x.jpg"],
        "There is no kind": ["sizes", story, "--kind", "char"],
        "does not exist": ["train", str(tmp_path / "no.txt"), "--out", str(tmp_path / "x")],
    }
    for sentence, words in slips.items():
        assert main(["tokens", *words]) == 2, words
        told = capsys.readouterr().err
        assert sentence in told and told.count("\n") == 1, told
    assert not (tmp_path / "x").exists()


def test_sizes_draw_the_trade_off(story: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tokens", "sizes", story, "--sizes", "260", "280", "300", "--dim", "64"]
    for ending, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        out = tmp_path / f"sizes{ending}"
        assert main([*words, "--out", str(out)]) == 0 and out.read_bytes().startswith(start)
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sizes"]
    assert [size["entries"] for size in found] == [260, 280, 300]
    assert [size["parameters"] for size in found] == [260 * 64, 280 * 64, 300 * 64]
    falling = [size["tokens_per_word"] for size in found]
    assert falling == sorted(falling, reverse=True) and falling[0] > falling[-1] > 1


def test_sizes_are_counted_on_text_that_was_held_out() -> None:
    body = "one two three four five six seven eight nine\n" * 27
    seen, new = (
        sizes("bpe", [body + "\n".join([last] * 3) + "\n"], [300])[0] for last in (body[:44], "zyx wvu tsr " * 4)
    )
    assert new.tokens_per_word > 1.5 * seen.tokens_per_word
    with pytest.raises(UserError, match="one size"):
        sizes("char", [body])
