"""The vocabulary of ESM against transformers' own tokenizer."""

from __future__ import annotations

import pytest

from glassformer.formats import letters
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake

TEXTS = ("MKTAYIAKQR<mask>LLQDX-B", "M K T xyz A\tQq  ", "<null_1>.MK<pad>", "mk", "")


def test_letters_are_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from transformers.models.esm.configuration_esm import get_default_vocab_list

    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(get_default_vocab_list()))
    reference = transformers.EsmTokenizer(str(path))
    reference.save_pretrained(tmp_path)
    actual = open_tokenizer(tmp_path)
    assert (actual.pad, actual.mask) == (1, 32)
    for text in TEXTS:
        ids = reference(text)["input_ids"]
        assert [0, *actual.encode(text, special=True), 2] == ids
    assert actual.encode_pair("MK", "TA")[0] == reference("MK", "TA")["input_ids"]
    actual.save(tmp_path / "again")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert [again(text)["input_ids"] for text in TEXTS] == [
        reference(text)["input_ids"] for text in TEXTS
    ]


def test_a_vocabulary_without_a_special_token_is_refused():
    with mistake("vocab.txt lacks one of <cls>, <pad>, <eos>, <unk>, <mask>"):
        letters.read_tokenizer("<cls>\nL\nA\n", "vocab.txt")
