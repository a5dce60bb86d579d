"""Files that gave other ids than they mean, in silence: now their own ids, or a sentence."""

from __future__ import annotations

import contextlib
import json

import pytest

from glassformer import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import byte_level as ranks
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from mistakes import mistake
from tokenizer.test_bad import MODEL, VOCAB
from tokenizer.test_tokenizer import IDENTITY, NASTY, STORY, sentencepiece_model, streamed


def put(folder, **files):
    """The folder with these files in it: bytes as they are, all else as JSON; ``__`` stands for a
    dot."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder


RULES = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def pair_of_files(extra=()):
    """A small vocab.json and merges.txt, as ``put`` takes them."""
    trained = json.loads(train_tokenizer("bpe", [*STORY, *NASTY], 500).to_json())["model"]
    merges = [" ".join(pair) for pair in trained["merges"]]
    vocabulary = {name: id for id, name in enumerate([*trained["vocab"], *extra])}
    text = "\n".join(["#version: 0.2", *merges]).encode()
    return {"vocab__json": vocabulary, "merges__txt": text}


def spec(**changes):
    return json.dumps({**json.loads(train_tokenizer("byte").to_json()), **changes})


# -------------------------------------------------------------------------------- tokenizer_class


@pytest.mark.parametrize("named", ["CamembertTokenizer", "XLNetTokenizerFast", "Magic\n"])
def test_an_unknown_class_is_refused_by_its_name(named, tmp_path):
    config = {"tokenizer_config__json": {"tokenizer_class": named}}
    pair = pair_of_files(extra=("<|endoftext|>",))
    for number, files in enumerate(({"tokenizer__model": MODEL}, {"vocab__txt": VOCAB}, pair)):
        folder = put(tmp_path / str(number), **files, **config)
        with mistake("is for the class"):
            open_tokenizer(folder)
    folder = put(tmp_path / "whole", tokenizer__json=json.loads(spec()), **config)
    assert open_tokenizer(folder).encode("ab") == [97, 98]  # a tokenizer.json says everything


def test_a_class_that_is_known_or_a_kind_opens(tmp_path):
    folder = put(tmp_path / "wp", vocab__txt=VOCAB)
    for named, kind in (("Magic", "bert-cased"), ("BertTokenizerFast", None)):
        put(folder, tokenizer_config__json={"tokenizer_class": named})
        text = "hello" if kind else "Hello"
        assert open_tokenizer(folder, kind=kind).encode(text) == [4]
    with mistake("of fairseq, by its name"):
        open_tokenizer(put(tmp_path / "bare", sentencepiece__bpe__model=MODEL))


def test_a_space_in_front_is_put_there_where_the_config_says_so(tmp_path):
    folder = put(tmp_path, **pair_of_files(extra=("<|endoftext|>",)))
    plain = open_tokenizer(folder)
    config = {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizer"}
    put(folder, tokenizer_config__json=config)
    assert open_tokenizer(folder).encode("once") == plain.encode(" once") != plain.encode("once")


# ---------------------------------------------------------------------------- cut and odd files


def test_cut_merges_make_no_special_tokens(tmp_path):
    extra = ("<|endoftext|>", "[own]", "madeupword0001")
    pair = pair_of_files(extra=extra)
    folder = put(tmp_path, **pair)
    assert open_tokenizer(folder).specials.keys() == set(extra)
    lines = pair["merges__txt"].splitlines()
    for saved in (1, 2, len(lines) // 2, len(lines) - 1):
        put(folder, merges__txt=b"\n".join(lines[:saved]))
        with mistake("by no merge, such as"):
            open_tokenizer(folder)
    vocabulary = pair["vocab__json"]
    vocabulary["END OF ALL"] = len(vocabulary)
    put(folder, **pair)
    with mistake("1 of the entries"):
        open_tokenizer(folder)
    put(folder, special_tokens_map__json={"eos_token": "END OF ALL"})
    assert "END OF ALL" in open_tokenizer(folder).specials


def test_a_character_that_a_bpe_cannot_write_is_named(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    library.add_special_tokens(["<end>"])
    library.save(str(tmp_path / "tokenizer.json"))
    actual = open_tokenizer(tmp_path)
    assert actual.encode("abba") == [2, 1, 0]
    assert actual.encode("ab<end>a", special=True) == [2, 3, 0]
    assert actual.vocabulary() == {"a": 0, "b": 1, "ab": 2, "<end>": 3}
    assert actual.size == 4
    for sample in ("abxa", "<end>", "ab\nc"):
        with mistake(r"does not know the character .* \(number "):
            actual.encode(sample)
    with mistake(r'"x" \(number 6 of the text\)'):  # not the "<" of the special token before it
        actual.encode("a<end>x<end>", special=True)
    assert from_json(actual.to_json()).fingerprint == actual.fingerprint


@pytest.mark.slow
def test_batches_of_any_kind():
    tokenizer = train_tokenizer("byte")
    samples = ["ab", "", "c"]
    expected = [[97, 98], [], [99]]
    for batch in (iter(samples), tuple(samples)):
        assert tokenizer.encode_batch(batch) == expected
    assert tokenizer.encode_batch(map(str.upper, ["x"] * (1 << 20)))[-1] == [88]
    assert [list(ids) for ids in tokenizer.encoder(1 << 30)(samples)] == expected


@pytest.mark.parametrize(
    "kind, more",
    [
        ("BPE", {"merges": []}),
        ("WordLevel", {}),
        ("WordPiece", {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}),
    ],
)
def test_added_tokens_have_the_ids_that_the_file_gives_them(kind, more):
    """``canonical`` puts them among the model's entries where they leave gaps."""
    model = {"type": kind, "vocab": {"a": 0, "b": 1, "<unk>": 2}, "unk_token": "<unk>", **more}
    added = [
        {"id": 9, "content": "<x>", "special": True, **RULES},
        {"id": 5, "content": "!!", "special": False, **RULES},
    ]
    split = {"type": "Whitespace"}
    full = {"version": "1.0", "added_tokens": added, "model": model, "pre_tokenizer": split}
    tokenizer = from_json(json.dumps(full))
    assert tokenizer.encode("a!!b") == [0, 5, 1]
    assert 9 not in tokenizer.encode("<x>")
    assert tokenizer.token(9) == "<x>"
    assert tokenizer.token(7) == ""
    assert tokenizer.size == 10
    again = from_json(tokenizer.to_json())
    assert again.fingerprint == tokenizer.fingerprint
    for item in (tokenizer, again):
        assert item.encode("a!!b<x>", special=True) == [0, 5, 1, 9]


@pytest.mark.parametrize("id", [0, 7, -1])
def test_added_ids_that_cannot_be_are_refused(id):
    added = [{"id": id, "content": "<x>", "special": True, **RULES}]
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]}
    with mistake("'<x>' has an id that it cannot have"):
        from_json(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))


@pytest.mark.parametrize("key", ["do_lower_case", "tokenize_chinese_chars", "strip_accents"])
def test_a_flag_is_true_or_false_and_nothing_else(key, tmp_path):
    folder = put(tmp_path, vocab__txt=VOCAB, tokenizer_config__json={key: "false"})
    with mistake(f"\"{key}\" is 'false'; write true or false"):
        open_tokenizer(folder)
    put(folder, tokenizer_config__json={"do_lower_case": False, "strip_accents": None})
    assert open_tokenizer(folder).encode("HELLO") == [1]
    assert open_tokenizer(folder, kind="bert-uncased").encode("HELLO") == [4]


def test_special_tokens_of_a_wordpiece_stand_apart(shared_data):
    transformers = pytest.importorskip("transformers")
    path = shared_data / "tok-bert-uncased" / "vocab.txt"
    actual = open_tokenizer(path)
    bert_tokenizer = transformers.BertTokenizer(str(path))
    for pair in (("hello there", "glass , house"), ("[MASK] . a", "don't")):
        ids, _ = actual.encode_pair(*pair, special=True)
        assert (
            actual.decode(ids, special=True)
            == bert_tokenizer.decode(ids)
            == streamed(actual, ids, special=True)
        )
    words = train_tokenizer("words", ["once upon a time"])
    ids = words.encode("once upon", eos=True)
    assert words.decode(ids, special=True) == "once upon </s>"


def test_nothing_of_a_truncated_sentencepiece_bpe_opens(tmp_path):
    data = sentencepiece_model(STORY, vocab_size=50, model_type="bpe", **IDENTITY)
    path = tmp_path / "a.model"
    opened = set()
    path.write_bytes(data)
    assert json.loads(open_tokenizer(path).to_json())["model"]["type"] == "BPE"
    for cut in range(1, len(data)):
        path.write_bytes(data[:cut])
        with contextlib.suppress(UserError):
            opened.add(json.loads(open_tokenizer(path).to_json())["model"]["type"])
    assert opened <= {"BPE"}


def test_a_special_token_that_is_a_learned_piece_is_named():
    with mistake(r"'once' is a piece of the vocabulary already"):
        ranks.byte_level({"on": 0, "once": 1}, [], ranks.RankEncoding(None, {"once": 2}))
