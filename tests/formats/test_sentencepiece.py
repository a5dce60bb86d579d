"""SentencePiece models of every setting, trained here by the original, against the original."""

from __future__ import annotations

import random

import pytest

from glassformer.core.errors import UserError
from glassformer.formats import checkpoint
from glassformer.formats.tokenizer_files import open as open_tokenizer
from tokenizer.test_tokenizer import IDENTITY, NASTY, SPECIAL, STORY, sentencepiece_model, streamed

# The library normalises by graphemes: marks that compose with nothing, and "\r\n", then differ from
# the original.
SETTINGS = {
    "unigram": {"model_type": "unigram"},
    "bpe": {"model_type": "bpe"},
    "unigram, bytes": {"model_type": "unigram", "byte_fallback": True, **IDENTITY},
    "bpe, bytes, all spaces": {
        "model_type": "bpe",
        "byte_fallback": True,
        "remove_extra_whitespaces": False,
    }
    | {"allow_whitespace_only_pieces": True, "split_digits": True, **IDENTITY},
    "bpe, no space in front": {
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
    }
    | IDENTITY,
    "unigram, pieces over words": {"model_type": "unigram", "split_by_whitespace": False},
    "unigram, user-defined": {
        "model_type": "unigram",
        "user_defined_symbols": ["<sep>"],
        "control_symbols": ["<cls>"],
    },
    "bpe, user-defined": {
        "model_type": "bpe",
        "user_defined_symbols": ["<sep>", "<sep2>"],
        "byte_fallback": True,
    }
    | {"remove_extra_whitespaces": False, **IDENTITY},
    "other ids": {"model_type": "bpe", "pad_id": 3, "bos_id": -1, "eos_id": 0, "unk_id": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_ids_and_texts_of_the_original(name, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    chance = random.Random(0)
    words = [word for sentence in {*STORY} for word in sentence.split()]
    corpus = [" ".join(chance.choices(words, k=8)) + chance.choice(".!?") for _ in range(300)]
    corpus += [f"{chance.randrange(10**6)}  äöü {chance.choice(NASTY[6:12])} x" for _ in range(100)]
    settings = SETTINGS[name]
    size = 400 if settings.get("byte_fallback") else 150
    path = tmp_path / "trained.model"
    path.write_bytes(
        sentencepiece_model(corpus, vocab_size=size, hard_vocab_limit=False, **settings)
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    actual = open_tokenizer(path)
    cases = [
        "a <sep> b",
        "<sep>a",
        "a<sep>",
        " <sep> ",
        "<sep><sep2><sep> x  <cls>y",
        "<0x41> <0x4",
    ]
    for sample in [*NASTY, *SPECIAL, *cases, *corpus[:40]]:
        if sample == "\r\n" and settings.get("normalization_rule_name") != "identity":
            continue
        ids = processor.encode(sample)
        assert actual.encode(sample) == ids, repr(sample)
        assert streamed(actual, ids) == actual.decode(ids)
        if processor.unk_id() not in ids and "▁" not in sample:
            assert actual.decode(ids) == processor.decode(ids)
    assert actual.size == processor.get_piece_size()
    pieces = [
        (actual.bos, processor.bos_id()),
        (actual.eos, processor.eos_id()),
        (actual.pad, processor.pad_id()),
    ]
    assert all(local == (None if second < 0 else second) for local, second in pieces)
    assert actual.unk == processor.unk_id()


def test_a_damaged_table_of_characters_is_refused_before_the_library_panics(
    shared_data, tmp_path, capfd
):
    """A panic would print to standard error from inside the library, beside our sentence."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((shared_data / "tok-t5" / "spiece.model").read_bytes())
    charsmap = model.normalizer_spec.precompiled_charsmap
    chance = random.Random(0)
    del model.pieces[300:]
    path = tmp_path / "x.model"
    size = int.from_bytes(charsmap[:4], "little")
    refused = 0
    for _ in range(20):
        table = bytearray(charsmap)
        for _ in range(100):
            table[chance.randrange(4, 4 + size)] = chance.randrange(256)
        model.normalizer_spec.precompiled_charsmap = bytes(table)
        path.write_bytes(model.SerializeToString())
        try:
            open_tokenizer(path, kind="t5").encode_batch(NASTY)
        except UserError as error:
            refused += "table of character replacements is damaged" in str(error)
    assert refused > 10
    assert capfd.readouterr().err == ""


def test_a_deberta_frames_what_its_spm_model_splits(tmp_path):
    """A folder as Microsoft publishes it: config.json, spm.model and no word about a class."""
    sentencepiece = pytest.importorskip("sentencepiece")
    roles = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    settings = {f"{role}_piece": name for role, name in roles.items()}
    settings |= {f"{role}_id": id for id, role in enumerate(roles)}
    path = tmp_path / "spm.model"
    path.write_bytes(sentencepiece_model(STORY, vocab_size=60, hard_vocab_limit=False, **settings))
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    assert checkpoint.has_tokenizer(tmp_path)
    tokenizer = open_tokenizer(tmp_path)
    ids = processor.encode(STORY[0])
    assert tokenizer.encode(STORY[0]) == ids
    assert tokenizer.encode_pair(STORY[0])[0] == [1, *ids, 2]
    pair, segments = tokenizer.encode_pair(STORY[0], STORY[0])
    assert pair == [1, *ids, 2, *ids, 2]
    assert segments == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
    assert (tokenizer.cls, tokenizer.sep, tokenizer.pad) == (1, 2, 0)
    assert tokenizer.mask == processor.get_piece_size() == tokenizer.size - 1
    config.write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    assert open_tokenizer(tmp_path).encode_pair(STORY[0])[0] == [1, *ids, 2]
    config.write_text('{"split_by_punct": true}')
    with pytest.raises(UserError, match=r"split_by_punct.*give its tokenizer.json"):
        open_tokenizer(tmp_path)


def test_a_deberta_without_cls_is_a_sentence(tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(sentencepiece_model(STORY, vocab_size=60, hard_vocab_limit=False))
    with pytest.raises(UserError, match=r"lacks \[CLS\] or \[SEP\]"):
        open_tokenizer(path, kind="deberta")
