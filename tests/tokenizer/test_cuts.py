"""A long document, which is tokenised in pieces, has the ids and bytes that it has as a whole."""

from __future__ import annotations

import random

import pytest
import regex

from glassformer.formats import byte_level
from glassformer.formats.data import find as find_corpus
from glassformer.formats.data import split_corpus, text_streams, tokenise
from glassformer.formats.tokenizer_files import open as open_tokenizer


def article(length):
    """Lines of every kind: words, code, comments that end and begin with marks, empty lines, other
    scripts."""
    chance = random.Random(0)
    kinds = [
        "Once upon a time",
        "    return x / y;",
        "*/",
        "/* 1 */",
        "/",
        "\u4f60\u597d",
        "12 345",
        "'tis",
        "_x",
        "",
    ]
    lines = []
    while length > 0:
        lines.append(" ".join(chance.choices(kinds, k=chance.randint(1, 9))))
        length -= len(lines[-1]) + 1
    return "\n".join(lines)


@pytest.mark.parametrize(
    "name",
    ["tok-llama2/tokenizer.model", "tok-phi3", "tok-t5/spiece.model", "tok-gpt2", "tok-bert-cased"],
)
def test_pieces_have_the_ids_of_the_whole(shared_data, name, tmp_path):
    full = article(300_000)
    (tmp_path / "long.txt").write_text(full, encoding="utf-8")
    tokenizer = open_tokenizer(shared_data / name)
    source = find_corpus(tmp_path / "long.txt")
    assert len(list(source.pieces())) > 2
    shards = tokenise(source, tokenizer, cache=tmp_path / "cache")
    opening = [tokenizer.bos] if tokenizer.bos not in (None, tokenizer.eos) else []
    assert shards.tokens.tolist() == [*opening, *tokenizer.encode(full), tokenizer.eos]
    for share in (0.3, 0.6):
        early, late = split_corpus(shards, share)
        assert early.bytes + late.bytes == shards.bytes == len(full.encode())
        decoded = tokenizer.decode(early.tokens.tolist())
        if tokenizer.decode(tokenizer.encode("a\nb")) == "a\nb":
            assert abs(len(decoded.encode()) - early.bytes) <= 3


@pytest.mark.parametrize("name", ["tok-llama2/tokenizer.model", "tok-gpt2"])
def test_bytes_before_any_token_are_those_of_the_whole(shared_data, name, tmp_path, monkeypatch):
    """Also in a piece that continues a document: nothing is put in front of it, as it would be of a
    whole text."""
    monkeypatch.setattr(text_streams, "PIECE", 150)
    text = article(3_000)
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    tokenizer = open_tokenizer(shared_data / name)
    source = find_corpus(tmp_path / "long.txt")
    assert len(list(source.pieces())) > 8
    shards = tokenise(source, tokenizer, cache=tmp_path / "cache")
    opening = int(tokenizer.bos not in (None, tokenizer.eos))
    for count, (_, end) in enumerate(tokenizer.offsets(text), 1):
        assert shards.corpus.bytes_before(opening + count) == len(text[:end].encode())


def test_no_published_split_reaches_over_a_cut(monkeypatch):
    monkeypatch.setattr(text_streams, "PIECE", 200)
    full = article(20_000) + "\nend */\n/ x*/\n/\n y"
    pieces = [
        piece
        for piece, _ in text_streams.cut(
            iter([full[at : at + 150] for at in range(0, len(full), 150)])
        )
    ]
    assert "".join(pieces) == full
    assert len(pieces) > 40
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for name, kind in byte_level.KINDS.items():
        pattern = kind.pattern or gpt2
        assert [
            word for piece in pieces for word in regex.findall(pattern, piece)
        ] == regex.findall(pattern, full), name
