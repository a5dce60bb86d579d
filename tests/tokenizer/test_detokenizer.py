"""Text as it grows: stop strings at every border of the tokens."""

from __future__ import annotations

import itertools

import pytest

from glassformer.core.tokenizer.detokenizer import Writer


class Letters:
    """A stream whose tokens are pieces of text."""

    def __init__(self, pieces):
        self.pieces = pieces

    def push(self, token):
        return self.pieces[token]

    def flush(self):
        return ""


def written(pieces, stops):
    """Text released by each piece (the last entry: at the end), and True where a stop string
    came."""
    writer = Writer(Letters(pieces), stops=stops)
    out = []
    for token in range(len(pieces)):
        out.append(writer.push(token))
        if writer.stopped:
            break
    return [*out, writer.close()], writer.stopped


def borders(text):
    """Every way to cut a text into pieces."""
    cuts = itertools.product([False, True], repeat=len(text) - 1)
    marks = [[0, *(i + 1 for i, local in enumerate(row) if local), len(text)] for row in cuts]
    return [[text[a:b] for a, b in itertools.pairwise(row)] for row in marks]


@pytest.mark.parametrize(
    "text, stops, expected, stopped",
    [
        ("abXYcd", ["XY"], "ab", True),
        ("abXXYc", ["XY"], "abX", True),
        ("aababac", ["abac"], "aab", True),
        ("abcdef", ["XY"], "abcdef", False),
        ("abcdeX", ["XY"], "abcdeX", False),  # held back, then released
        ("zabcz", ["abc", "b"], "za", True),  # the first to be complete wins
        ("zabcz", ["bc", "abc"], "z", True),  # complete together: the longer one
        ("STOPab", ["STOP"], "", True),
        ("caf\u00e9\u2026X", ["\u2026"], "caf\u00e9", True),
    ],
)
def test_stop_strings_wherever_the_tokens_end(text, stops, expected, stopped):
    for pieces in borders(text):
        out, ended = written(pieces, stops)
        assert "".join(out) == expected
        assert ended == stopped


def test_what_was_held_back_comes_before_the_end():
    class Broken:
        push = staticmethod(chr)
        # an unfinished character, which might begin a stop string of its own
        flush = staticmethod(lambda: "\ufffd")

    writer = Writer(Broken(), stops=["ab", "\ufffdc"])
    assert writer.push(ord("a")) == ""
    assert writer.close() == "a\ufffd"


def test_only_what_might_begin_a_stop_string_waits():
    assert written(["a ", "X", "b", "X", "Y", "!"], ["XY"]) == (["a ", "", "Xb", "", "", ""], True)
