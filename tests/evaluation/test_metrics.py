"""Figures by the usual libraries: checked against hand counts and the definitions."""

from __future__ import annotations

import math

import pytest

from glassformer.tasks.evaluation import by_length, of_labels, of_numbers, of_texts, whole_words
from mistakes import mistake

RIGHT = ["the cat sat on the mat", "a small dog ran over the green hill"]


def test_the_same_text_is_perfect():
    names = ("bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact")
    assert of_texts(RIGHT, RIGHT, names) == pytest.approx(dict.fromkeys(names, 100.0))


def test_bleu_is_the_papers_formula():
    written = ["the cat sat on a mat"]
    right = ["the cat sat on the mat"]
    precisions = (5 / 6, 3 / 5, 2 / 4, 1 / 3)
    expected = 100 * math.exp(sum(map(math.log, precisions)) / 4)
    assert of_texts(written, right, ("bleu",), tokenised=True)["bleu"] == pytest.approx(
        expected, abs=0.01
    )


def test_capitals_and_pieces():
    names = ("bleu", "chrf", "rouge1", "exact")
    repeated = of_texts(["A CAT SAT ON IT"], ["a cat sat on it"], names, lower=True)
    assert repeated == pytest.approx(dict.fromkeys(names, 100))
    assert max(of_texts(["A CAT SAT ON IT"], ["a cat sat on it"]).values()) < 50
    parted = [
        of_texts(["a b c d!"], ["a b c d !"], ("bleu",), tokenised=output)["bleu"]
        for output in (False, True)
    ]
    # white space alone parts what is parted already
    assert parted[0] == pytest.approx(100)
    assert parted[1] < 100
    assert of_texts(["A CAT SAT ON IT"], ["a cat sat on it"], ("bleu", "exact"))["exact"] == 0
    assert whole_words("ein bo@@ ston ter@@ rier@@") == "ein boston terrier"


def test_several_references_take_the_best():
    several = [["nothing alike here", RIGHT[0]], [RIGHT[1], "other words"]]
    assert of_texts(RIGHT, several, ("rouge1", "exact", "bleu")) == pytest.approx(
        {"rouge1": 100, "exact": 100, "bleu": 100}
    )


def test_rouge_is_f1_of_stems():
    assert of_texts(["the dogs runs"], ["the dog run"], ("rouge1",))["rouge1"] == pytest.approx(100)
    result = of_texts(["a b c d e f"], ["a b c"], ("rouge1",))["rouge1"]
    # half of what is written is right, all of the right one
    assert result == pytest.approx(100 * 2 * 0.5 * 1.0 / 1.5)


def test_labels_and_numbers():
    result = of_labels([1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 1, 1])
    hits = 2
    misses = 1
    false = 1
    quiet = 2  # of label 1
    mcc = (hits * quiet - false * misses) / math.sqrt(
        (hits + false) * (hits + misses) * (quiet + false) * (quiet + misses)
    )
    assert result["matthews"] == pytest.approx(mcc)
    assert result["accuracy"] == pytest.approx(100 * 4 / 6)
    # F1 4/5, 1/2 and 0: of each label, then their mean
    three = of_labels([0, 0, 0, 1, 2], [0, 0, 1, 1, 1])
    assert three["f1"] == pytest.approx(100 * (4 / 5 + 1 / 2 + 0) / 3)
    assert of_numbers([1.0, 2.0, 3.0, 9.0], [1.0, 4.0, 9.0, 10.0])["spearman"] == pytest.approx(1.0)
    assert of_numbers([1.0, 2.0, 4.0], [1.0, 3.0, 2.0])["pearson"] == pytest.approx(
        0.3273, abs=1e-4
    )
    # 0.1 three times has a mean that is not 0.1
    assert of_numbers([0.1] * 3, [0.7] * 3) == {"pearson": 0, "spearman": 0}


def test_lengths():
    assert by_length(["a b", "a b c d e", "a b c d e f g"], (4, 6)) == {
        "1-4": [0],
        "5-6": [1],
        "7+": [2],
    }
    assert by_length(["a b c d", "a b c d e f"], (4, 6)) == {"1-4": [0], "5-6": [1], "7+": []}


def test_bad_input():
    with mistake("2 texts and 1 references"):
        of_texts(RIGHT, RIGHT[:1])
    with mistake('no figure "blue"'):
        of_texts(RIGHT, RIGHT, ("blue",))
    with mistake("nothing to score"):
        of_texts([], [])
    with mistake("as many"):
        of_labels([1], [1, 0])
    with mistake("2 answers to 3 numbers"):
        of_numbers([1.0, 2.0], [1.0, 2.0, 3.0])
