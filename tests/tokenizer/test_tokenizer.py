"""The tokenizer's face: training, ids, spans, special tokens, streams, and saving. Needs no
data."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys

import pytest

from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from mistakes import mistake

NASTY = [
    "", " ", "  ", "\t", "\n", "\r\n", " a", "a ", "  a  b   c  ", "\n\n\n", " \n \n", "a\n\n  b",
    "👩‍👩‍👧‍👦🏳️‍🌈 🇩🇪", "e\u0301 é n\u0303 ñ", "你好，世界！こんにちは 한국어 한글", "ｆｕｌｌ　ｗｉｄｔｈ ①②③ ﬁ ﬂ ½ ²",
    "\x01\x02\x07\x1b[0m", "\u200b\u200c\u200d\ufeff\u00ad", "\u00a0\u2003\u3000x",
    "don't I'll we've they're I'm he'd it's DON'T I'LL 'S ’s ſ 'ſ", "1234567890 12,345.67 3.14e-10 ٣٤٥ １２３",
    "!!!??? ... --- *** ((())) #$%^&*", "    def f(x):\n        return x + 1\n\n\n",
    "\t\tif (a && b) {\n\t\t\treturn;\n\t\t}\n",
    "مرحبا بالعالم שלום עולם", "नमस्ते दुनिया ไทย မြန်မာ", "🤖" * 10, "a" * 300, " " * 100, "\n" * 50, "\ufffd x \ufffd",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𝟙𝟚", "ǅ Ǆ ß ẞ İ ı ŉ ŁÓDŹ Ångström naïve façade", "`~\\|/", "▁ ▁▁ a▁b", "##ing ##",
    "\U0010ffff\ue000", "豈 更", "https://example.com/a?b=c&d=e#f user@host.org", "ΑΒΓ αβγ Привет мир",
]  # fmt: skip
SPECIAL = [
    "<|endoftext|>",
    "a</s><s>b",
    " [CLS] x [SEP]",
    "<pad><unk>",
    "<extra_id_0> <|im_start|>user",
    "<|eot_id|>",
]
STORY = ["Once upon a time there was a little glass house. "] * 20 + [
    "Its walls were clear; you could see through! "
] * 20


def streamed(tokenizer, ids, special=False):
    """The text of ids, one at a time."""
    stream = tokenizer.stream(special=special)
    return "".join(stream.push(id) for id in ids) + stream.flush()


IDENTITY = {"normalization_rule_name": "identity"}


def sentencepiece_model(texts, **settings):
    """What the original SentencePiece learns of texts."""
    sentencepiece = pytest.importorskip("sentencepiece")
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=buffer, minloglevel=3, **settings
    )
    return buffer.getvalue()


@pytest.fixture(scope="module", params=["byte", "bpe"])
def byte_level(request):
    return train_tokenizer(request.param, STORY, 300 if request.param == "bpe" else None)


def test_text_survives_and_spans_cover_it(byte_level):
    for sample in NASTY + SPECIAL + STORY[:1]:
        ids = byte_level.encode(sample)
        assert byte_level.decode(ids) == streamed(byte_level, ids) == sample
        spans = byte_level.offsets(sample)
        assert len(spans) == len(ids)
        for piece, (start, end) in zip([byte_level.bytes_of(id) for id in ids], spans, strict=True):
            assert start < end <= len(sample)
            assert piece in sample[start:end].encode()
        assert {i for start, end in spans for i in range(start, end)} == set(range(len(sample)))


def test_byte_ids_are_the_bytes():
    tokenizer = train_tokenizer("byte")
    assert tokenizer.size == 257
    assert tokenizer.eos == 256
    assert tokenizer.encode("é\0z", eos=True) == [*"é\0z".encode(), 256]
    assert train_tokenizer("byte", specials=()).eos is None


def test_char_ids_are_the_sorted_characters():
    tokenizer = train_tokenizer("char", ["hello\n", "wörld"], specials=())
    letters = sorted(set("hello\nwörld"))
    assert tokenizer.size == len(letters)
    assert tokenizer.specials == {}
    assert tokenizer.eos is None
    assert tokenizer.encode("wörld\nhe") == [letters.index(c) for c in "wörld\nhe"]
    assert tokenizer.decode(tokenizer.encode("wörld\nhe")) == "wörld\nhe"
    with_end = train_tokenizer("char", ["hello\n", "wörld"])
    assert with_end.size == len(letters) + 1
    assert with_end.eos == len(letters)
    assert with_end.encode("he") == tokenizer.encode("he")


def test_char_says_which_character_it_does_not_know_and_where():
    with mistake(r'"é" \(number 2 of the text\)'):
        train_tokenizer("char", ["abc"]).encode("abé")
    lenient = train_tokenizer("char", ["abc"], specials=("<unk>",))
    assert lenient.encode("aéb") == [0, lenient.unk, 1]


def test_bpe_has_the_size_asked_for_and_is_the_same_each_time():
    first = train_tokenizer("bpe", STORY, 300)
    second = train_tokenizer("bpe", iter(STORY), 300)
    assert first.size == 300
    assert first.fingerprint == second.fingerprint
    assert len(first.encode(STORY[0])) < len(STORY[0]) / 2
    assert first.fingerprint != train_tokenizer("bpe", STORY, 299).fingerprint
    assert first.eos == 299
    assert first.vocabulary()["<|endoftext|>"] == 299


def test_special_tokens_are_read_only_when_asked(byte_level):
    end = byte_level.eos
    assert end is not None
    sample = "a<|endoftext|>b"
    assert end not in byte_level.encode(sample)
    ids = byte_level.encode(sample, special=True)
    assert ids.count(end) == 1
    assert byte_level.encode("a", eos=True) == [ids[0], end]
    assert byte_level.decode(ids) == streamed(byte_level, ids) == "ab"
    assert byte_level.decode(ids, special=True) == streamed(byte_level, ids, special=True) == sample


def test_a_stream_never_shows_half_a_character():
    tokenizer = train_tokenizer("byte")
    stream = tokenizer.stream()
    assert [stream.push(byte) for byte in "a👩é".encode()] == ["a", "", "", "", "👩", "", "é"]
    assert stream.flush() == ""
    assert stream.push(0xF0) == ""
    assert stream.flush() == "\ufffd"
    words = train_tokenizer("words", ["a b"], None, ("<unk>",))
    twice = words.stream()
    for _ in range(2):  # afresh after its end
        assert "".join(map(twice.push, words.encode("a b"))) + twice.flush() == words.decode(
            words.encode("a b")
        )
    chance = random.Random(0)
    for _ in range(200):
        ids = [chance.randrange(256) for _ in range(20)]
        assert (
            streamed(tokenizer, ids)
            == tokenizer.decode(ids)
            == bytes(ids).decode("utf-8", "replace")
        )


def test_names_and_ids_agree(byte_level):
    for name, id in byte_level.vocabulary().items():
        assert byte_level.token(id) == name
        assert byte_level.id(name) == id
    assert byte_level.id("no such token") is None
    assert len(byte_level) == byte_level.size == len(byte_level.vocabulary())


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_json_and_folder_give_the_same_tokenizer(kind, tmp_path):
    tokenizer = train_tokenizer(
        kind, STORY, 300 if kind == "bpe" else None, specials=("<|end|>", "<|endoftext|>")
    )
    tokenizer.save(tmp_path / "model")
    for second in (from_json(tokenizer.to_json()), open_tokenizer(tmp_path / "model")):
        assert second.fingerprint == tokenizer.fingerprint
        assert second.encode(STORY[0], eos=True) == tokenizer.encode(STORY[0], eos=True)
    json.loads(tokenizer.to_json())["model"]


def test_unusual_parts_survive_json():
    spec = train_tokenizer("byte", specials=("<|go|>", "<|stop|>")).to_json()
    tokenizer = from_json(spec, {"bos": "<|go|>", "eos": "<|stop|>"})
    again = from_json(tokenizer.to_json())
    assert (again.bos, again.eos) == (tokenizer.bos, tokenizer.eos) == (256, 257)
    assert again.fingerprint == tokenizer.fingerprint
    turned = from_json(spec, {"bos": "<|stop|>", "eos": "<|go|>"})
    assert turned.fingerprint != tokenizer.fingerprint  # documents are opened and closed by others


def test_pieces_of_a_unigram_that_look_special_stay_text():
    pieces = [["<unk>", 0.0], ["</s>", 0.0], *[[c, -3.0] for c in "</s>ab▁"]]
    spec = {
        "added_tokens": [{"id": 1, "content": "</s>", "special": True, "single_word": False, "lstrip": False}
                         | {"rstrip": False, "normalized": False}],
        "pre_tokenizer": None, "normalizer": None, "post_processor": None, "decoder": {"type": "Fuse"},
        "model": {"unk_id": 0, "vocab": pieces},
    }  # fmt: skip
    tokenizer = from_json(json.dumps({"version": "1.0", **spec}))
    assert tokenizer.encode("a</s>b") == [6, 2, 3, 4, 5, 7]
    assert tokenizer.decode([6, 2, 3, 4, 5, 7]) == "a</s>b"
    assert tokenizer.encode("a</s>b", special=True) == [6, 1, 7]
    assert tokenizer.eos == 1


def test_truncation_and_padding_of_a_published_file_are_left_out():
    spec = json.loads(train_tokenizer("byte").to_json())
    spec["truncation"] = {
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
        "direction": "Right",
    }
    spec["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    spec["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
    assert from_json(json.dumps(spec)).encode("abcdef") == list(b"abcdef")


def test_mistakes_are_said_in_one_sentence():
    tokenizer = train_tokenizer("byte")
    mistakes = {
        "Token 257 is out of range": lambda: tokenizer.decode([257]),
        "Token -1 is out of range": lambda: tokenizer.stream().push(-1),
        "out of range; this tokenizer has tokens 0 to 256": lambda: tokenizer.token(10**9),
        "half of a surrogate": lambda: tokenizer.encode("ab\ud800"),
        "this is a int": lambda: tokenizer.encode(5),
        "no end-of-text token": lambda: train_tokenizer("byte", specials=()).encode("a", eos=True),
        "no text to train": lambda: train_tokenizer("bpe", [""]),
        "no text to train a": lambda: train_tokenizer("char", []),
        "text 1 is a int": lambda: train_tokenizer("bpe", ["a", 1]),
        "at least 257": lambda: train_tokenizer("bpe", ["a"], 256),
        'Did you mean "char"': lambda: train_tokenizer("chars", ["a"]),
        "leave out the size": lambda: train_tokenizer("char", ["abc"], 9),
        "has 257 entries": lambda: train_tokenizer("byte", [], 300),
    }
    for sentence, act in mistakes.items():
        with mistake(sentence):
            act()


def test_importing_text_is_light():
    use = "import sys, glassformer.core.tokenizer as t, glassformer.formats.tokenizer_files as f; "
    code = use + "t.Tokenizer, t.train, f.open; print({'torch', 'tokenizers'} & {*sys.modules})"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "set()\n"
    )


@pytest.mark.slow
def test_transformers_begins_a_text_as_we_do(shared_data, tmp_path):
    from transformers import AutoTokenizer

    for folder in ("stories260K", "tok-llama2", "tok-llama3", "tok-gpt2"):
        tokenizer = open_tokenizer(shared_data / folder)
        tokenizer.save(tmp_path / folder)
        reference = AutoTokenizer.from_pretrained(tmp_path / folder)
        ids = tokenizer.encode("Once upon a time", bos=tokenizer.bos != tokenizer.eos)
        assert reference("Once upon a time").input_ids == ids
        assert open_tokenizer(tmp_path / folder).fingerprint == tokenizer.fingerprint
