"""Wrong, cut and damaged tokenizer files: one sentence each, never a traceback."""

from __future__ import annotations

import base64
import json
import random

import pytest

from folders import write_json
from glassformer import UserError
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake
from tokenizer.test_tokenizer import STORY

RANKS = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
VOCAB = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nhello\n##s\n"


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number, body):
    """A counted field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def piece(name, kind):
    return field(1, field(1, name) + b"\x15\0\0\0\0" + b"\x18" + varint(kind))


PIECES = (
    piece(b"<unk>", 2)
    + piece(b"<s>", 3)
    + piece(b"</s>", 3)
    + piece("▁a".encode(), 1)
    + piece(b"b", 1)
)
MODEL = PIECES + field(2, b"") + field(3, b"")  # all usual: how it was trained, how it normalises


def spec(change):
    raw = json.loads(train_tokenizer("byte").to_json())
    change(raw)
    return json.dumps(raw).encode()


CASES = {
    "empty": ("tokenizer.json", b"", "is empty"),
    "no JSON": ("tokenizer.json", b'{"model": {', "not valid JSON"),
    "deep JSON": ("tokenizer.json", b'{"a":' + b"[" * 100_000, "not valid JSON"),
    "not UTF-8": ("tokenizer.json", b'{"model": "\xff"}', "not valid JSON"),
    "no model": ("tokenizer.json", b'{"hidden_size": 3}', 'no "model"'),
    "no vocabulary": (
        "tokenizer.json",
        spec(lambda raw: raw["model"].pop("vocab")),
        "lacks what a tokenizer.json",
    ),
    "empty vocabulary": (
        "tokenizer.json",
        spec(lambda raw: raw.update(added_tokens=[], model={"vocab": {}})),
        "restore",
    ),
    "unknown model": (
        "tokenizer.json",
        spec(lambda raw: raw["model"].update(type="Magic")),
        "no tokenizer that can",
    ),
    "lost merge": (
        "tokenizer.json",
        spec(lambda raw: raw["model"].update(merges=[["q", "zz"]])),
        "no tokenizer that can",
    ),
    "strange decoder": (
        "tokenizer.json",
        spec(lambda raw: raw.update(decoder={"type": "CTC"})),
        "not supported",
    ),
    "huge id": (
        "tokenizer.json",
        spec(lambda raw: raw["model"]["vocab"].update(zz=2**40)),
        "no tokenizer that can",
    ),
    "binary": ("tokenizer.bin", bytes(range(256)) * 9, "not a tokenizer of a known format"),
    "GGUF": ("vocab.gguf", b"GGUF\x03\0\0\0" + bytes(900), "not a whole GGUF file"),
    "ranks of no kind": ("my.tiktoken", RANKS, "say which with kind="),
    "torn rank": ("my.tiktoken", RANKS + b"!!!", "Line 257"),
    "repeated token": ("my.tiktoken", RANKS + b"YWI= 256\nYWI= 257\n", "Line 258"),
    "repeated rank": ("my.tiktoken", RANKS + b"YWI= 255\n", "one rank to two tokens"),
    "negative rank": ("my.tiktoken", RANKS + b"YWI= -5\n", "Line 257"),
    "huge rank": ("my.tiktoken", RANKS + b"YWI= 99999999999999999999\n", "Line 257"),
    "missing bytes": (
        "my.tiktoken",
        b"".join(RANKS.splitlines(keepends=True)[:99]),
        "lacks 157 of",
    ),
    "too few ranks": ("my.tiktoken", RANKS, 'is not what "gpt2" has'),
    "cut model": ("x.model", MODEL[:-3], "not a whole SentencePiece model"),
    "cut between pieces": ("x.model", PIECES, "ends before it says how it splits"),
    "lying length": (
        "x.model",
        MODEL + b"\x0a\xff\xff\xff\xff\x0f",
        "not a whole SentencePiece model",
    ),
    "endless number": ("x.model", MODEL + b"\xff" * 20, "not a whole SentencePiece model"),
    "no pieces": ("x.model", b"\x12\0", "no vocabulary"),
    "no unknown": ("x.model", MODEL[len(piece(b"<unk>", 2)) :], "one entry for unknown"),
    "twice a piece": ("x.model", MODEL + piece(b"b", 1), "same text"),
    "bad text": ("x.model", MODEL + piece(b"\xff\xfe", 1), "not a whole SentencePiece model"),
    "word model": ("x.model", MODEL + field(2, b"\x18\x03"), "only Unigram and BPE"),
    "damaged charsmap": ("x.model", MODEL + field(3, field(2, b"\xff\xff\0\0abc")), "cut short"),
    "no words": ("vocab.txt", b"some\ntext\nof\nsome\nkind\n", r"lacks \[UNK\]"),
    "repeated word": ("vocab.txt", VOCAB + b"hello\n", "Line 5"),
    "vocab not UTF-8": ("vocab.txt", VOCAB + b"\xff\n", "not UTF-8"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_one_sentence(case, tmp_path, capfd):
    name, data, sentence = CASES[case]
    (tmp_path / name).write_bytes(data)
    kind = "gpt2" if name == "my.tiktoken" and case != "ranks of no kind" else None
    with mistake(sentence):
        open_tokenizer(tmp_path / name, kind=kind)
    assert capfd.readouterr().err == ""  # not even from inside the library


def test_the_good_ones_open(tmp_path):
    """The files that the cases above damage are good."""
    (tmp_path / "x.model").write_bytes(MODEL)
    (tmp_path / "vocab.txt").write_bytes(VOCAB)
    assert open_tokenizer(tmp_path / "x.model").encode("ab") == [3, 4]
    assert open_tokenizer(tmp_path / "vocab.txt").encode("Hellos") == [4, 5]


def test_vocab_and_merges(tmp_path):
    """Errors of ``read_vocabulary``."""
    model = json.loads(train_tokenizer("bpe", STORY, 300).to_json())["model"]
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    write_json(tmp_path / "vocab.json", model["vocab"])
    with mistake(r"merges\.txt cannot be read"):
        open_tokenizer(tmp_path / "vocab.json")
    with mistake("holds no tokenizer"):
        open_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text(merges)
    assert open_tokenizer(tmp_path).encode(STORY[0]) == train_tokenizer("bpe", STORY, 300).encode(
        STORY[0]
    )
    (tmp_path / "merges.txt").write_text(merges + "\nqq zz\n")
    with mistake(r"Line \d+ of .* is not a merge"):
        open_tokenizer(tmp_path)
    for damage in ({"a": 0}, {**model["vocab"], "zz": 5}, {**model["vocab"], "zz": "5"}):
        write_json(tmp_path / "vocab.json", damage)
        with pytest.raises(UserError):
            open_tokenizer(tmp_path)


def test_folders_and_kinds(tmp_path):
    with mistake("cannot be read"):
        open_tokenizer(tmp_path / "missing")
    with mistake("holds no tokenizer"):
        open_tokenizer(tmp_path)
    (tmp_path / "x.model").write_bytes(MODEL)
    with mistake('Did you mean "qwen"'):
        open_tokenizer(tmp_path, kind="qwem")
    with mistake('cannot be of the kind "qwen"'):
        open_tokenizer(tmp_path, kind="qwen")
    (tmp_path / "y.model").write_bytes(MODEL)
    with mistake("holds 2 tokenizers"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<nothing>"}')
    with mistake('lacks "<nothing>"'):
        open_tokenizer(tmp_path / "x.model")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"900": {"content": "<far>"}}}'
    )
    with mistake('adds "<far>" at 900'):
        open_tokenizer(tmp_path / "x.model")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"added_tokens_decoder": {"5": {"content": "<next>"}}, "eos_token": null}'
    )
    tokenizer = open_tokenizer(tmp_path / "x.model")
    assert tokenizer.id("<next>") == 5
    assert tokenizer.eos is None


def test_random_damage_never_ends_in_a_traceback(tmp_path):
    chance = random.Random(0)
    files = {"x.model": MODEL, "vocab.txt": VOCAB, "tokenizer.json": spec(lambda raw: None)}
    for _ in range(150):
        for name, data in files.items():
            damaged = bytearray(data)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            cut = len(damaged) if chance.random() < 0.5 else chance.randrange(1, len(damaged))
            (tmp_path / name).write_bytes(damaged[:cut])
            try:
                tokenizer = open_tokenizer(tmp_path / name)
                tokenizer.decode(tokenizer.encode("Hello </s> é 👩"))
            except UserError:
                continue
