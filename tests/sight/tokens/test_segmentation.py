"""A trace is proven: every distinct word of real texts comes to the ids of the library, for each
kind of tokenizer."""

from __future__ import annotations

from functools import cache

import pytest

from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import pretrained
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from glassformer.sight.tokens.segmentation import Match, Merge, Tracer, trace
from glassformer.sight.tokens.segmentation import Path as Way
from glassformer.sight.tokens.steps import steps
from mistakes import mistake

TEXTS = ("tinyshakespeare/input.txt", "multi30k/train.de", "multi30k/train.en")
TRAINED = ["a glass house, a glass roof, houses of glass and stone"] * 5


@cache
def words_of(folder, every):
    """Distinct words, with the space before them; beside them some that no vocabulary knows."""
    words = {word for name in TEXTS for word in (folder / name).read_text(encoding="utf-8").split()}
    odd = [
        " 🎵",
        "鸟人",
        "x\u0301é",
        "\t\t",
        " \n ",
        "a" * 120,
        "<s>",
        "[UNK]",
        "▁",
        "12345",
        "don't",
        "𓂀𓂀",
    ]
    return [
        *odd,
        *(f" {word}" if at % 2 else word for at, word in enumerate(sorted(words)[::every])),
    ]


def destination(word, unknown):
    """The pieces to which the steps of a trace come."""
    if word.algorithm == "BPE":
        last = word.steps[-1].pieces if word.steps else word.start
        return [word.word] if word.whole else list(last)
    if word.algorithm == "WordPiece":
        pieces = [step.piece for step in word.steps]
        return pieces if pieces and None not in pieces else [unknown]
    return list(word.steps[0].pieces) if word.steps else []


def proven(tokenizer, words):
    tracer = Tracer(tokenizer, rivals=0)
    unknown = "" if tokenizer.unk is None else tokenizer.token(tokenizer.unk)
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True):
        traces = [tracer(pretoken) for pretoken in tokenizer.words(word)]
        assert [id for item in traces for id in item.ids] == ids, repr(word)
        for item in traces:
            if item.algorithm == "Unigram":  # unknown neighbours are one piece, or its bytes
                vocabulary_pieces = [
                    piece for piece in destination(item, "") if tokenizer.id(piece) is not None
                ]
                assert vocabulary_pieces == [
                    piece for piece in item.pieces if piece in vocabulary_pieces
                ]
            else:
                hidden = [piece.removeprefix("\0 ") for piece in destination(item, unknown)]
                assert hidden == list(item.pieces), repr(word)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert-cased", "bert-uncased", "t5", "llama2", "phi3", "starcoder"]
)
def test_traces_come_to_the_librarys_ids(shared_data, monkeypatch, name):
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    proven(pretrained.find(name), words_of(shared_data, 6))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(pretrained.KNOWN))
def test_traces_of_every_distinct_word(shared_data, monkeypatch, name):
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    proven(pretrained.find(name), words_of(shared_data, 1))


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "char", "byte", "words"])
def test_traces_of_what_is_trained_here(kind):
    tokenizer = train_tokenizer(
        kind, TRAINED, 300 if kind == "bpe" else 60 if kind in ("wordpiece", "unigram") else None
    )
    sample = "a glass stone house"
    assert [id for item in trace(tokenizer, sample) for id in item.ids] == tokenizer.encode(sample)


def test_a_bpe_is_joined_merge_by_merge(shared_data):
    (item,) = trace(open_tokenizer(shared_data / "tok-gpt2"), "tokenization")
    assert item.pieces == ("token", "ization") and item.ids == (30001, 1634)
    merges = [step for step in item.steps if isinstance(step, Merge)]
    assert (merges[0].rank, merges[0].left, merges[0].right) == (5, "o", "n")
    assert len(merges) == len(item.start) - len(item.pieces) and merges[-1].pieces == item.pieces
    lines = (shared_data / "tok-gpt2" / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    assert all(lines[merge.rank] == f"{merge.left} {merge.right}" for merge in merges)
    assert any("ok + en" in line and "rank  3,977" in line for line in steps(item))


def test_a_wordpiece_takes_the_longest_match(shared_data):
    bert = open_tokenizer(shared_data / "tok-bert-cased")
    (item,) = trace(bert, "tokenization")
    assert item.steps == (Match("tokenization", 8, "token"), Match("ization", 1, "##ization"))
    (lost,) = trace(bert, "🎵")
    assert lost.steps == (Match("🎵", 1, None),) and lost.pieces == ("[UNK]",)


def test_a_unigram_has_a_best_path_and_rivals(shared_data):
    (item,) = trace(open_tokenizer(shared_data / "tok-t5"), "tokenization", rivals=4)
    steps = [step for step in item.steps if isinstance(step, Way)]
    assert steps[0].pieces == ("▁token", "ization") and len(steps) == 5 == len(
        {step.pieces for step in steps}
    )
    assert [step.score for step in steps] == sorted((step.score for step in steps), reverse=True)
    assert all("".join(step.pieces) == item.word for step in steps)
    scores = dict(open_tokenizer(shared_data / "tok-t5").spec["model"]["vocab"])
    assert all(
        step.score == pytest.approx(sum(scores[piece] for piece in step.pieces)) for step in steps
    )


def test_a_token_that_was_added_has_no_path():
    import json

    raw = json.loads(train_tokenizer("bpe", TRAINED, 300).to_json())
    last = len(raw["model"]["vocab"]) + 1
    raw["added_tokens"].append(
        {**raw["added_tokens"][0], "id": last, "content": "glassy", "special": False}
    )
    tokenizer = from_json(json.dumps(raw))
    assert last in tokenizer.encode("a glassy roof") and trace(tokenizer, "a roof")
    with mistake("leave that token out"):
        trace(tokenizer, "a glassy roof")
