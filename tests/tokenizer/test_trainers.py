"""``tokens train`` and ``tokens sizes``: every kind is opened by transformers and by us; slips are
one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer import UserError
from glassformer.cli import main
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.tokenizer.trainers import TRAINED
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.sight.tokens.vocabulary_size import sizes

STORY = (
    "Once upon a time there was a little glass house.\nIts walls were clear; you could see "
    "through! \n"
)
OTHER = STORY + "\n\n  The  house, 12 walls of glass.\n"


@pytest.fixture
def story(tmp_path: Path) -> str:
    (tmp_path / "story.txt").write_text(STORY * 30, encoding="utf-8")
    return str(tmp_path / "story.txt")


def size_of(kind: str) -> list[str]:
    return [] if kind in ("char", "byte") else ["--size", "300" if kind == "bpe" else "90"]


@pytest.mark.parametrize("kind", TRAINED)
def test_what_is_trained_is_opened_by_transformers_and_by_us(kind, story, tmp_path, capsys):
    out = tmp_path / kind
    assert main(["tokens", "train", story, "--kind", kind, *size_of(kind), "--out", str(out)]) == 0
    assert str(out / "tokenizer.json") in capsys.readouterr().out
    actual = open_tokenizer(out)
    samples = [STORY, OTHER] if kind != "char" else [STORY]
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(out)
    for sample in samples:
        ids = actual.encode(sample)
        assert reference.encode(sample, add_special_tokens=False) == ids
        if kind in ("bpe", "unigram", "char", "byte"):
            assert (
                actual.decode([id for id in ids if id != actual.unk])
                .replace(" ", "")
                .startswith("Onceupona")
            )
            assert kind == "unigram" or actual.decode(ids) == sample
    fits = {"bpe": 300, "byte": 257, "char": len(set(STORY)) + 1}.get(kind, 90)
    assert actual.size <= fits and (
        actual.size == fits or kind in ("words", "unigram", "wordpiece")
    )


def test_a_unigram_keeps_every_space_and_line():
    tokenizer = train_tokenizer("unigram", [STORY] * 9, 80)
    assert tokenizer.decode(tokenizer.encode(STORY)) == STORY
    assert tokenizer.unk in tokenizer.encode("glass 🎵")


def test_a_unigram_is_sentencepieces(shared_data):
    """Pieces and scores of its trainer on lines; so a held-out text has as many tokens, and no
    piece crosses a line."""
    import io

    import sentencepiece

    text = (shared_data / "tinyshakespeare" / "input.txt").read_text()
    train, stored = text[:200_000], text[200_000:230_000]
    actual, model = train_tokenizer("unigram", [train], 700), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(train.split("\n")), model_writer=model, vocab_size=697, model_type="unigram",
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False,
        add_dummy_prefix=False, num_threads=1, minloglevel=3,
    )  # fmt: skip
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    lines = stored.split("\n")
    count = sum(len(processor.encode(line)) for line in lines) + len(lines) - 1
    assert abs(len(actual.encode(stored)) - count) < 0.005 * count
    assert not [name for name in actual.vocabulary() if "\n" in name and name != "\n"]
    assert actual.decode(actual.encode(stored)) == stored


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "words"])
def test_nothing_is_learnt_across_or_of_a_special_token(kind, tmp_path, capsys):
    (tmp_path / "two.txt").write_text("glass house<|endoftext|>glass wall<|im_end|>\n" * 60)
    words = [
        "tokens",
        "train",
        str(tmp_path / "two.txt"),
        "--kind",
        kind,
        "--size",
        "330" if kind == "bpe" else "60",
    ]
    assert main([*words, "--out", str(tmp_path / "a"), "--special", "<|endoftext|>"]) == 0
    stderr = capsys.readouterr().err
    assert '"<|im_end|>" is in this text 60 times' in stderr and "<|endoftext|>" not in stderr
    plain = open_tokenizer(tmp_path / "a")
    learnt = {name for name in plain.vocabulary() if name not in plain.specials}
    assert "<|endoftext|>" in plain.specials and not [
        name for name in learnt if "endof" in name or "houseg" in name
    ]
    assert any("_" in name for name in learnt), "what is not said to be special is text"
    assert (
        main(
            [
                *words,
                "--out",
                str(tmp_path / "b"),
                "--separator",
                "<|endoftext|>",
                "--special",
                "<|im_end|>",
            ]
        )
        == 0
    )
    assert "learnt as text" not in capsys.readouterr().err
    assert not [
        name
        for name in open_tokenizer(tmp_path / "b").vocabulary()
        if "endof" in name and name[:2] != "<|"
    ]


def test_letters_of_wordpiece_are_those_of_its_words():
    from glassformer.core.tokenizer import library as tokenizers
    from glassformer.formats import tokenizer_trainers

    odd = "don't stop, 漢字かな é e\u0301 a\u200bb naïve—yes x\ty\u00a0z C3PO №5 a.b # ## x#"
    library = tokenizers.load(train_tokenizer("wordpiece", [odd], 200, None)._spec, "The tokenizer")
    pieces = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(odd))
    words = [word for word, _ in pieces]
    inner = {f"##{letter}" for word in words for letter in word[1:]}
    assert tokenizer_trainers._word_letters(library, [odd]) == sorted({*"".join(words), *inner})


def test_wordpiece_is_like_berts():
    tokenizer = train_tokenizer("wordpiece", [STORY] * 9, 90)
    assert tokenizer.size == 90 and {"[CLS]", "[SEP]", "[UNK]"} <= tokenizer.specials.keys()
    assert tokenizer.encode_pair("glass")[0][0] == tokenizer.cls
    assert any(name.startswith("##") for name in tokenizer.vocabulary())
    assert tokenizer.unk in tokenizer.encode("🎵")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "char", "words"])
def test_the_same_text_gives_the_same_tokenizer(kind):
    size = {"bpe": 300, "wordpiece": 90, "unigram": 60}.get(kind)
    assert len({train_tokenizer(kind, [STORY] * 5, size).fingerprint for _ in range(4)}) == 1


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe"])
def test_a_size_below_the_alphabet_says_what_is_needed(kind, story, tmp_path, capsys):
    out = tmp_path / "none"
    assert main(["tokens", "train", story, "--kind", kind, "--size", "12", "--out", str(out)]) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and "give a" in stderr and not out.exists()
    least = 257 if kind == "bpe" else int(stderr.split("size of ")[1].split()[0])
    assert train_tokenizer(kind, [STORY] * 30, least).size <= least


def test_slips_are_one_sentence(story, tmp_path, capsys):
    (tmp_path / "bad.txt").write_bytes(b"good\nbad \xff\n")
    (tmp_path / "blank.txt").write_text(" \n \n")
    (tmp_path / "few.txt").write_text("a b")
    slips = {
        "--out DIR": ["train", story],
        'Did you mean "unigram"': ["train", story, "--kind", "unigrm", "--out", "x"],
        "not UTF-8 text (byte 9)": [
            "train",
            str(tmp_path / "bad.txt"),
            "--out",
            str(tmp_path / "x"),
        ],
        "no word": [
            "train",
            str(tmp_path / "blank.txt"),
            "--kind",
            "wordpiece",
            "--out",
            str(tmp_path / "x"),
        ],
        "too few words": ["sizes", str(tmp_path / "few.txt")],
        "--out is not understood": ["sizes", story, "--out", "x"],
        "give 1 to": ["train", story, "--size", "4000000000", "--out", str(tmp_path / "x")],
        "There is no kind": ["sizes", story, "--kind", "char"],
        "does not exist": ["train", str(tmp_path / "no.txt"), "--out", str(tmp_path / "x")],
    }
    for sentence, words in slips.items():
        assert main(["tokens", *words]) == 2, words
        stderr = capsys.readouterr().err
        assert sentence in stderr and stderr.count("\n") == 1, stderr
    assert not (tmp_path / "x").exists()


def test_sizes_show_the_trade_off(story, capsys):
    words = ["tokens", "sizes", story, "--sizes", "260", "280", "300", "--dim", "64"]
    assert main(words) == 0 and "█" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["sizes"]
    assert [size["entries"] for size in data] == [260, 280, 300]
    assert [size["parameters"] for size in data] == [260 * 64, 280 * 64, 300 * 64]
    falling = [size["tokens_per_word"] for size in data]
    assert falling == sorted(falling, reverse=True) and falling[0] > falling[-1] > 1


def test_sizes_are_counted_on_text_that_was_held_out():
    body = "one two three four five six seven eight nine\n" * 27
    observed, new = (
        sizes("bpe", [body + "\n".join([last] * 3) + "\n"], [300])[0]
        for last in (body[:44], "zyx wvu tsr " * 4)
    )
    assert new.tokens_per_word > 1.5 * observed.tokens_per_word
    with pytest.raises(UserError, match="one size"):
        sizes("char", [body])
