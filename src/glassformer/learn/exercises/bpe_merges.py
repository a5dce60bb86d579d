"""BPE: merges, one by one

A tokenizer of subwords begins with single characters. It looks which two neighbours stand side by
side most often in all words, makes one piece of them everywhere, writes the pair down, and begins
again. The list of pairs, in this order, is the tokenizer: to read a new word, merge in it the pair
that was learnt first, everywhere from left to right, then the next that is there, until none of its
pairs is in the list.

Where no pair is left, stop: the list is then shorter than `merges`. Where two pairs are equally
frequent take the one that comes first in the alphabet: `min` over (-count, pair).
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 1.1
HINTS = (
    "Keep each word as a list of pieces; pairwise(pieces) gives its neighbours two by two.",
    "To merge a pair go through the pieces with an index: two that fit become one and the index "
    "moves on by 2.",
    "To read a word: of the pairs in it take the one with the lowest rank (its place in the "
    "list), until none has any.",
)

# %% yours
from collections import Counter
from itertools import pairwise


def learn(words: dict[str, int], merges: int) -> list[tuple[str, str]]:
    """words and how often each stands in the text -> the pairs in the order in which they are
    merged."""
    # TODO: count the pairs of neighbours in all words, each as often as its word; merge the most
    # frequent; again
    pieces = {word: list(word) for word in words}
    learnt: list[tuple[str, str]] = []
    for _ in range(merges):
        pair_counts: Counter[tuple[str, str]] = Counter()
        for word, symbols in pieces.items():
            for pair in pairwise(symbols):
                pair_counts[pair] += words[word]
        if not pair_counts:
            break
        best = min(pair_counts, key=lambda pair: (-pair_counts[pair], pair))
        learnt.append(best)
        pieces = {word: joined(symbols, best) for word, symbols in pieces.items()}
    return learnt
    # END


def joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """The pieces with the pair made one, everywhere, from left to right: (a, b) in a b a b -> ab
    ab."""
    # TODO: go through the pieces; where this one and the next are the pair, put their sum
    out, at = [], 0
    while at < len(pieces):
        fits = tuple(pieces[at : at + 2]) == pair
        out.append(pieces[at] + pieces[at + 1] if fits else pieces[at])
        at += 2 if fits else 1
    return out
    # END


def tokenise(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """The pieces of a word by a list of merges."""
    # TODO: of the pairs in the word merge the one that was learnt first; again, until none is in
    # the list
    pieces, rank = list(word), {pair: at for at, pair in enumerate(merges)}
    while True:
        candidates = [pair for pair in pairwise(pieces) if pair in rank]
        if not candidates:
            return pieces
        pieces = joined(pieces, min(candidates, key=lambda pair: rank[pair]))
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    look = "after a merge go on behind both pieces: a a a with the pair (a, a) is aa a"
    name = 'joined(["a", "a", "a", "b"], ("a", "a"))'
    report.call(learner.joined, joined, list("aaab"), ("a", "a"), name=name, look=look)
    name, look = 'joined(["a"], ("a", "b"))', "a word of one piece"
    report.call(learner.joined, joined, ["a"], ("a", "b"), name=name, look=look)
    letters = "abcde"
    words: dict[str, int] = {}
    for _ in range(30):
        word = "".join(report.random.choice(letters) for _ in range(report.random.randint(1, 7)))
        words[word] = report.random.randint(1, 50)
    slips = {
        "the count: a pair counts as often as its word stands in the text": learn(
            dict.fromkeys(words, 1), 12
        ),
        "the first merge is right, then every count is made anew, after the words were merged": learn(
            words, 1
        )
        * 12,
    }
    look = "ties: the first in the alphabet"
    report.call(learner.learn, learn, words, 12, name="learn(words, 12)", slips=slips, look=look)
    name, look = 'learn({"ab": 3}, 5)', "stop when no pair is left"
    report.call(learner.learn, learn, {"ab": 3}, 5, name=name, look=look)
    first = " + ".join(learn(words, 1)[0])
    report.say(f"12 merges of 30 drawn words are right, the first: {first}")

    import json

    _, tokenizer = real_model.real()
    pairs = [tuple(pair) for pair in json.loads(tokenizer.to_json())["model"]["merges"]]
    sentences = [
        "The cat sat on the mat because it was tired",
        "Once upon a time",
        "What light through yonder window",
    ]
    for text in sentences:
        expected = [tokenizer.token(id) for id in tokenizer.encode(text)]
        actual = [piece for word in pieces_of(text) for piece in learner.tokenise(word, pairs)]
        look = (
            "always the pair of the lowest rank in the whole word first, not the first from "
            "the left"
        )
        report.equal(f"the tokens of {text!r}", actual, expected, look=look)
    report.say(
        f"by the {len(pairs)} merges of the real model's tokenizer, {len(sentences)} "
        "sentences as it reads them"
    )


def pieces_of(text: str) -> list[str]:
    """A text of plain words as byte-level BPE sees it: a word keeps the space before it, written as
    Ġ."""
    words = text.split(" ")
    return [words[0], *("Ġ" + word for word in words[1:])]
