"""Texts for encoders: what stands around one text and two, segments, cutting to fit, masks and
sentinels."""

from __future__ import annotations

import random

import pytest

from folders import edit_json, read_json, write_json
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "mat",
    "near",
    "a",
    "big",
    "red",
    "ball",
    "while",
    "two",
    "dogs",
    "looked",
    "unbelievable",
]


TEXTS = ("Two dogs run.", "  H\u00e9llo   w\u00f6rld\n!", "\u9ce5 \u65e5\u672c", "x")
FRAME = ["<s>", "<pad>", "</s>", "<unk>"]


def roberta(transformers, shared_data):
    raw = read_json(shared_data / "tok-gpt2" / "tokenizer.json")
    vocab = [token for token in raw["model"]["vocab"] if token != "<|endoftext|>"]
    ids = {token: id for id, token in enumerate([*FRAME, *vocab, "<mask>"])}
    merges = [tuple(m.split()) if isinstance(m, str) else tuple(m) for m in raw["model"]["merges"]]
    return transformers.RobertaTokenizer(vocab=ids, merges=merges)


def pieces(shared_data):
    library = pytest.importorskip("sentencepiece")
    path = str(shared_data / "tok-t5" / "spiece.model")
    model = library.SentencePieceProcessor(model_file=path)
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(3, len(model))]


@pytest.mark.parametrize("kind", ["Roberta", "Roberta of two files", "XLMRoberta", "Camembert"])
def test_pairs_of_roberta_s_kin_are_those_of_transformers(shared_data, kind, tmp_path):
    """Ids, segments and the mask; and what is written opens there with the same ids."""
    transformers = pytest.importorskip("transformers")
    if kind.startswith("Roberta"):
        reference = roberta(transformers, shared_data)
    else:
        frame = [*FRAME, "<unk>NOTUSED"] if kind == "Camembert" else FRAME
        entries = [(text, 0.0) for text in frame] + pieces(shared_data)
        entries += [("<mask>", 0.0)] if kind == "XLMRoberta" else []
        reference = getattr(transformers, f"{kind}Tokenizer")(vocab=entries)
    reference.save_pretrained(tmp_path / "theirs")
    if kind.endswith("files"):
        put_apart(tmp_path / "theirs")
        reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    actual = open_tokenizer(tmp_path / "theirs")
    actual.save(tmp_path)
    back = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (actual.pad, actual.mask) == (reference.pad_token_id, reference.mask_token_id)
    for text in TEXTS:
        for texts in ((text,), (text, TEXTS[0])):
            ids = reference(*texts)["input_ids"]
            assert actual.encode_pair(*texts) == (ids, [0] * len(ids))
            assert back(*texts)["input_ids"] == ids
    blank = "A <mask> dog"
    assert actual.encode_pair(blank, special=True)[0] == reference(blank)["input_ids"]


def put_apart(folder):
    """The same as vocab.json and merges.txt beside a config.json, as the first folders were."""
    model = read_json(folder / "tokenizer.json")["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    write_json(folder / "vocab.json", model["vocab"])
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    write_json(folder / "config.json", {"model_type": "roberta"})
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False}
    write_json(folder / "special_tokens_map.json", {"mask_token": mask})


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_bert_pairs_are_those_of_transformers(shared_data, case):
    """Ids and segments, cut to many lengths, against a tokenizer we did not write."""
    transformers = pytest.importorskip("transformers")
    path = shared_data / f"tok-bert-{case}" / "vocab.txt"
    reference = transformers.BertTokenizer(str(path), do_lower_case=case == "uncased")
    actual = open_tokenizer(path)
    assert (actual.cls, actual.sep, actual.mask, actual.pad) == (101, 102, 103, 0)
    assert actual.sentinels == []
    chance = random.Random(0)
    for most in (None, 5, 6, 7, 8, 11, 12, 20):
        for _ in range(20):
            args = [" ".join(chance.choices(WORDS, k=chance.randrange(1, 16))) for _ in range(2)]
            for texts in (args, args[:1]):
                expected = reference(*texts, max_length=most, truncation=most is not None)
                result = actual.encode_pair(*texts, most=most)
                assert result == (expected["input_ids"], expected["token_type_ids"]), (most, texts)
    pairs = [("the", "cat"), "sat", (" ".join(WORDS), "")]
    expected = [actual.encode_pair(*pair) for pair in (pairs[0], ["sat"], pairs[2])]
    assert actual.encode_pairs(pairs) == expected


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.json"])
def test_t5_closes_each_text_and_has_its_sentinels_in_order(shared_data, name):
    transformers = pytest.importorskip("transformers")
    folder = shared_data / "tok-t5"
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    actual = open_tokenizer(folder / name)
    assert actual.sentinels == list(range(32099, 31999, -1))
    assert actual.mask is None
    assert actual.token(actual.sentinels[0]) == "<extra_id_0>"
    assert actual.pad == 0
    assert actual.eos == 1
    for texts in (("A cat.", "Two dogs."), ("A cat.",)):
        assert actual.encode_pair(*texts)[0] == reference(*texts)["input_ids"]
    assert actual.encode("A cat.", eos=True) == reference("A cat.")["input_ids"]


def test_a_mask_survives_a_folder_and_another_name(tmp_path):
    specials = ("[CLS]", "[SEP]", "[MASK]", "<extra_id_1>", "<extra_id_0>")
    actual = train_tokenizer("char", ["abc "], specials=specials)

    def special(tokenizer):
        return [tokenizer.cls, tokenizer.sep, tokenizer.mask, *tokenizer.sentinels]

    names = [actual.token(id) for id in special(actual)]
    assert names == ["[CLS]", "[SEP]", "[MASK]", "<extra_id_0>", "<extra_id_1>"]
    cls, sep, a, b, c = (actual.id(name) for name in ("[CLS]", "[SEP]", "a", "b", "c"))
    assert actual.encode_pair("ab", "c") == ([cls, a, b, sep, c, sep], [0, 0, 0, 0, 1, 1])
    actual.save(tmp_path)
    assert special(open_tokenizer(tmp_path)) == special(actual)
    edit_json(tmp_path / "tokenizer_config.json", mask_token="c", sep_token="gone")
    second = open_tokenizer(tmp_path)
    assert (second.mask, second.sep) == (c, None)
    assert second.hides(c)


def test_what_cannot_be_joined_is_one_sentence():
    plain = train_tokenizer("byte", specials=())
    assert plain.encode_pair("ab") == ([97, 98], [0, 0])
    with mistake("no token to put between two texts"):
        plain.encode_pair("a", "b")
    ended = train_tokenizer("byte")
    assert ended.encode_pair("a", "b") == ([97, 256, 98, 256], [0, 0, 1, 1])
    assert ended.encode_pair("abc", "bcde", most=5)[0] == [97, 256, 98, 99, 256]
    with mistake("2 tokens leave no room"):
        ended.encode_pair("a", "b", most=2)
