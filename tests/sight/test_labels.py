"""What a token is called: the vocabulary's name in data, the text that it stands for in a table."""

from __future__ import annotations

import copy
import json

from glassformer.core.tokenizer import train
from glassformer.sight.labels import display_texts, pieces, text, visible


def test_names_and_readable_ones():
    tokenizer = train("bpe", "the cat sat on the mat\n\tthe end " * 20, size=300)
    ids = [*tokenizer.encode("the cat\n\té"), tokenizer.eos or 0]
    assert "".join(display_texts(tokenizer, ids)[:-3]) == "the·cat↵⇥"
    assert display_texts(tokenizer, ids)[-1] == pieces(tokenizer, ids)[-1] == "<|endoftext|>"
    assert display_texts(tokenizer, ids)[-3:-1] == ["⟨c3⟩", "⟨a9⟩"]  # halves of a character
    assert pieces(tokenizer, ids) == [tokenizer.token(id) for id in ids]
    assert [text(tokenizer, id) for id in tokenizer.encode(" the")] == [" the"]
    assert pieces(None, [3]) == display_texts(None, [3]) == ["#3"]
    assert (
        pieces(tokenizer, [tokenizer.size])
        == display_texts(tokenizer, [tokenizer.size])
        == [f"#{tokenizer.size}"]
    )


def test_a_piece_is_its_name_in_data_and_survives_a_copy():
    tokenizer = train("bpe", "the cat sat on the mat " * 20, size=300)
    (piece,) = pieces(tokenizer, tokenizer.encode(" the"))
    assert json.dumps([piece]) == json.dumps(["Ġthe"])
    assert (copy.deepcopy(piece), copy.deepcopy(piece).display) == ("Ġthe", "·the")


def test_what_cannot_be_seen_has_a_sign():
    assert visible("a b\tc\nd\re\x00\u200b") == "a·b⇥c↵d␍e\\x00\\u200b"
