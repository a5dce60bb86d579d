"""What a token is called: the vocabulary's name in data, as it reads in a table."""

from __future__ import annotations

from glassformer.tokenizer import train
from glassformer.tokenizer.labels import pieces, shown


def test_names_and_readable_ones() -> None:
    tokenizer = train("bpe", "the cat sat on the mat\n\tthe end " * 20, size=300)
    ids = [*tokenizer.encode("the cat\n\té"), tokenizer.eos or 0]
    assert "".join(shown(tokenizer, ids)[:-3]) == "the·cat↵⇥"
    assert shown(tokenizer, ids)[-1] == pieces(tokenizer, ids)[-1] == "<|endoftext|>"
    assert shown(tokenizer, ids)[-3:-1] == ["\ufffd"] * 2  # halves of a character
    assert pieces(tokenizer, ids) == [tokenizer.token(id) for id in ids]
    assert pieces(None, [3]) == shown(None, [3]) == ["#3"]
    assert pieces(tokenizer, [tokenizer.size]) == shown(tokenizer, [tokenizer.size]) == [f"#{tokenizer.size}"]
