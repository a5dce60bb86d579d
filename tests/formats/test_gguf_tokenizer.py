"""Vocabularies in GGUF files of every kind, written here by another hand, against other
implementations."""

from __future__ import annotations

import json
import random
import re
import struct
import unicodedata

import pytest
import regex
from gguf import GGUFValueType, GGUFWriter

from glassformer.core.tokenizer import framing
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.core.tokenizer.detokenizer import byte_alphabet
from glassformer.formats.gguf_fields import fields_of
from glassformer.formats.gguf_tokenizer import SPLITS
from glassformer.formats.tokenizer_files import open as open_tokenizer
from glassformer.formats.tokenizer_forms import added_token, tokenizer_of
from mistakes import mistake
from tokenizer.test_tokenizer import IDENTITY, NASTY, SPECIAL, STORY, sentencepiece_model, streamed

TYPES = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}
CL100K = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| "
    r""
    r""
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# from here on the rules see these, of which some are digits, as Falcon's own file has it
BYTES = "letters for bytes"
RULES = {  # as llama.cpp lists them: each cuts what the one before has left
    "gpt-2": [GPT2],
    "mpt": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "command-r": [r"\p{N}", GPT2],
    "llama-bpe": [CL100K.replace("DIGITS", "{1,3}")],
    "pixtral": [CL100K.replace("DIGITS", "{1,3}")],
    "qwen2": [CL100K.replace("DIGITS", "")],
    "qwen35": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, BYTES, r"\p{N}+", "[0-9][0-9][0-9]"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"],
    "bloom": [r" ?[^(\s|.,!?…。，、।۔،)]+"],
}
COMPOSING = {"mpt", "qwen2", "qwen35", "command-r"}  # NFC first, which llama.cpp leaves out


def written(path, fields, tail=0):
    """A GGUF file with these fields and no tensors, and ``tail`` bytes of nothing behind."""
    writer = GGUFWriter(path, "llama")
    for name, value in fields.items():
        kind = GGUFValueType.ARRAY if isinstance(value, bytes) else GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.truncate(file.tell() + tail)
    return path


def tokenizer_fields(model, names, kinds, **more):
    """The fields of a vocabulary."""
    types = [TYPES[kind] for kind in kinds]
    stored = {"model": model, "tokens": names, "token_type": types, **more}
    return {f"tokenizer.ggml.{name}": value for name, value in stored.items()}


def bpe_fields(pre, user=(), **more):
    """A small byte-level BPE, and the ids of its entries."""
    model = json.loads(train_tokenizer("bpe", [*STORY, *NASTY], 700).to_json())["model"]
    names = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in model["merges"]]
    fields = tokenizer_fields(
        "gpt2",
        [*names, "<|end|>", *user],
        ["normal"] * len(names) + ["control"] + ["user"] * len(user),
        pre=pre,
        merges=merges,
        eos_token_id=len(names),
    )
    return {**fields, **more}, model["vocab"]


def split(rules, sample):
    """The pieces of a text after every rule."""
    pieces = [sample]
    for rule in rules:
        if rule == BYTES:
            pieces = ["".join(byte_alphabet()[byte] for byte in piece.encode()) for piece in pieces]
            continue
        cut = []
        for piece in pieces:
            at = 0
            for result in regex.finditer(rule, piece):
                cut += [piece[at : result.start()], result[0]]
                at = result.end()
            cut.append(piece[at:])
        pieces = [piece for piece in cut if piece]
    return pieces


@pytest.mark.parametrize("pre", RULES)
def test_byte_level_words_are_split_by_the_rule_that_is_named(pre, tmp_path):
    tiktoken = pytest.importorskip("tiktoken")
    fields, ids = bpe_fields(pre)
    actual = open_tokenizer(written(tmp_path / "model.gguf", fields))
    ranks = {actual.bytes_of(id): id for id in ids.values()}
    encoding = tiktoken.Encoding(
        "theirs", pat_str=r"[\s\S]+", mergeable_ranks=ranks, special_tokens={}
    )
    byte_of = {letter: byte for byte, letter in byte_alphabet().items()}
    for sample in [*NASTY, *SPECIAL, "3333 33.3 ½²", "I'VE told 'em; we're 12345 strong\n\n\n  x"]:
        full = unicodedata.normalize("NFC", sample) if pre in COMPOSING else sample
        pieces = [piece.encode() for piece in split(RULES[pre], full)]
        if BYTES in RULES[pre]:
            pieces = [bytes(map(byte_of.__getitem__, piece.decode())) for piece in pieces]
        expected = [id for piece in pieces for id in encoding._encode_bytes(piece)]
        assert actual.encode(sample) == expected, repr(sample)
        assert streamed(actual, expected) == actual.decode(expected) == full
    assert actual.eos == len(ids)
    assert actual.bos == actual.unk is None


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_sentencepieces_kinds(kind, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    chance = random.Random(0)
    words = [word for sentence in {*STORY} for word in sentence.split()]
    texts = [" ".join(chance.choices(words, k=8)) + chance.choice(".!?") for _ in range(300)]
    model = sentencepiece_model(
        texts,
        vocab_size=400 if kind == "llama" else 150,
        model_type="bpe" if kind == "llama" else "unigram",
        byte_fallback=kind == "llama",
        remove_extra_whitespaces=kind == "t5",
        user_defined_symbols=["<sep>"],
        hard_vocab_limit=False,
        **IDENTITY,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    every = range(processor.get_piece_size())
    fields = {
        "unknown": processor.is_unknown,
        "control": processor.is_control,
        "unused": processor.is_unused,
    }
    fields["byte"] = processor.is_byte
    kinds = [next((name for name, asks in fields.items() if asks(id)), "normal") for id in every]
    names = [processor.id_to_piece(id) for id in every]
    kinds[names.index("<sep>")] = "user"
    scores = [float(processor.get_score(id)) for id in every]
    more = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "remove_extra_whitespaces": kind == "t5",
    }
    actual = open_tokenizer(
        written(tmp_path / "a.gguf", tokenizer_fields(kind, names, kinds, scores=scores, **more))
    )
    for sample in [*NASTY, *SPECIAL, *STORY[:1], "a<sep>b <sep>"]:
        assert actual.encode(sample) == processor.encode(sample), repr(sample)
        assert streamed(actual, actual.encode(sample)) == actual.decode(processor.encode(sample))
    assert (actual.bos, actual.eos, actual.unk) == (1, 2, 0)


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_berts_kind(shared_data, case, tmp_path):
    path = shared_data / f"tok-bert-{case}" / "vocab.txt"
    names = path.read_text(encoding="utf-8").splitlines()
    controls = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    marked = re.compile(r"\[.*\]")
    bare = [
        name if marked.fullmatch(name) else name[2:] if name.startswith("##") else f"▁{name}"
        for name in names
    ]
    kinds = ["control" if name in controls else "normal" for name in names]
    fields = tokenizer_fields("bert", bare, kinds, cls_token_id=names.index("[CLS]"))
    actual, reference = map(open_tokenizer, (written(tmp_path / "bert.gguf", fields), path))
    assert actual.encode_batch(NASTY) == reference.encode_batch(NASTY)
    assert actual.cls == reference.cls == actual.bos
    assert actual.encode_pair("a", "b") == reference.encode_pair("a", "b")


def test_phi3_is_its_tokenizer_json(shared_data):
    folder = shared_data / "tok-phi3"
    names = ("ggml-vocab-phi-3.gguf", "tokenizer.json")
    actual, reference = (open_tokenizer(folder / name) for name in names)
    for sample in [*NASTY, *SPECIAL]:
        assert actual.encode(sample) == reference.encode(sample)
    assert actual.encode("<|end|>", special=True)[-1] == reference.id("<|end|>")
    assert actual.token(actual.eos) == "<|endoftext|>"


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer.json"])
def test_t5s_vocabulary_goes_out_and_back(shared_data, name, tmp_path):
    """Pieces with scores, a table of replacements, 100 sentinels; the model's last 28 rows are no
    tokens."""
    reference = open_tokenizer(shared_data / "tok-t5" / name)
    fields = fields_of(reference, 32_128)
    assert fields["tokenizer.ggml.model"] == "t5"
    assert len(fields["tokenizer.ggml.tokens"]) == 32_128
    actual = open_tokenizer(written(tmp_path / "t5.gguf", fields))
    for sample in [*NASTY, *SPECIAL, *STORY[:1], "[UNUSED32100] [PAD1]"]:
        assert actual.encode(sample) == reference.encode(sample), repr(sample)
    assert actual.size == reference.size
    assert actual.sentinels == reference.sentinels
    assert actual.encode("<extra_id_7></s>", special=True)[-2:] == [reference.sentinels[7], 1]
    assert framing.source(actual, [5]) == framing.source(reference, [5]) == [5, 1]
    assert framing.decoder_start(actual) == framing.decoder_start(reference) == [0]


@pytest.mark.parametrize("spaces", [True, False])
def test_a_unigram_vocabulary_goes_out_and_back(spaces, tmp_path):
    """As SentencePiece learns it, with pieces for the bytes of other characters."""
    model = sentencepiece_model(
        STORY,
        vocab_size=330,
        model_type="unigram",
        byte_fallback=True,
        remove_extra_whitespaces=spaces,
        add_dummy_prefix=spaces,
        hard_vocab_limit=False,
        **({} if spaces else IDENTITY),
    )
    (tmp_path / "spiece.model").write_bytes(model)
    reference = open_tokenizer(tmp_path / "spiece.model")
    fields = fields_of(reference, reference.size + 3)
    assert ("tokenizer.ggml.precompiled_charsmap" in fields) == spaces
    actual = open_tokenizer(written(tmp_path / "a.gguf", fields))
    for sample in [*NASTY, *SPECIAL, *STORY[:1]]:
        assert actual.encode(sample) == reference.encode(sample), repr(sample)


def test_an_encoders_byte_level_vocabulary_goes_out_and_back(tmp_path):
    """ModernBERT's kind: composed characters, and tokens around a text."""
    spec = json.loads(train_tokenizer("bpe", [*STORY, *NASTY], 400).to_json())
    names = enumerate(("[CLS]", "[SEP]", "[PAD]", "[MASK]"), len(spec["model"]["vocab"]))
    added = [added_token(id, name) for id, name in names]
    pre = SPLITS["gpt-2"][0]
    spec |= {"normalizer": {"type": "NFC"}, "pre_tokenizer": pre, "added_tokens": added}
    reference = tokenizer_of(spec)
    fields = fields_of(reference, reference.size)
    assert fields["tokenizer.ggml.pre"] == "modern-bert"
    ids = [fields[f"tokenizer.ggml.{name}_token_id"] for name in ("cls", "seperator", "mask")]
    assert ids == [reference.cls, reference.sep, reference.mask]
    actual = open_tokenizer(written(tmp_path / "a.gguf", fields))
    for sample in [*NASTY, *SPECIAL, *STORY[:1]]:
        assert actual.encode(sample) == reference.encode(sample), repr(sample)
    assert actual.encode_pair("a", "b") == reference.encode_pair("a", "b")
    assert (actual.cls, actual.sep, actual.pad, actual.mask) == tuple(
        range(actual.size - 4, actual.size)
    )
    assert fields["tokenizer.ggml.add_eos_token"] and fields["tokenizer.ggml.add_bos_token"]


def test_user_defined_tokens_are_found_whole(tmp_path):
    fields, ids = bpe_fields("gpt-2", user=("    ", "<tool>"))
    actual = open_tokenizer(written(tmp_path / "a.gguf", fields))
    assert actual.encode("a    b<tool>")[1::2] == [len(ids) + 1, len(ids) + 2]
    assert actual.decode(actual.encode("a    b<tool>")) == "a    b<tool>"
    assert actual.specials == {"<|end|>": len(ids)}


def test_the_weights_are_not_read(tmp_path):
    fields, _ = bpe_fields("gpt-2")
    # a hole: it needs no room on the disk
    path = written(tmp_path / "model.gguf", fields, tail=5 << 30)
    assert path.stat().st_size > 5 << 30
    small = written(tmp_path / "small.gguf", fields)
    assert open_tokenizer(path).fingerprint == open_tokenizer(small).fingerprint


def _dropped(*names):
    def change(fields):
        for name in names:
            del fields[f"tokenizer.ggml.{name}"]

    return change


CASES = {
    "no merges": (_dropped("merges"), "no merges"),
    "no rule": (_dropped("pre"), "does not say how it splits"),
    "unknown rule": (
        lambda f: f.update({"tokenizer.ggml.pre": "mystery"}),
        'unknown rule "mystery"',
    ),
    "unknown kind": (lambda f: f.update({"tokenizer.ggml.model": "rwkv"}), 'kind "rwkv"'),
    "no types": (_dropped("token_type"), "not a whole GGUF"),
    "short types": (lambda f: f["tokenizer.ggml.token_type"].pop(), "do not fit each other"),
    "twice a token": (lambda f: f["tokenizer.ggml.tokens"].__setitem__(5, "b"), "repeats a token"),
    "endless token": (lambda f: f["tokenizer.ggml.tokens"].__setitem__(-1, "x" * 5000), "endless"),
    "lost merge": (lambda f: f["tokenizer.ggml.merges"].append("q zz"), "not there"),
    "far end": (lambda f: f.update({"tokenizer.ggml.eos_token_id": 10**6}), "not a whole GGUF"),
    "no scores": (lambda f: f.update({"tokenizer.ggml.model": "llama"}), "not a whole GGUF"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_vocabulary_is_one_sentence(case, tmp_path):
    fields, _ = bpe_fields("gpt-2")
    change, sentence = CASES[case]
    change(fields)
    with mistake(sentence):
        open_tokenizer(written(tmp_path / "a.gguf", fields))


@pytest.mark.parametrize("size", [1 << 62, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("kind", ["name", "list"])
def test_a_lying_size_takes_no_memory(kind, size, tmp_path):
    path = tmp_path / "a.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    name = struct.pack("<Q", size) + b"name"
    if kind == "list":
        name = struct.pack("<Q", 1) + b"n" + struct.pack("<IIQ", 9, 4, size) + b"abcd"
    path.write_bytes(head + name)
    with mistake("not a whole GGUF"):
        open_tokenizer(path)
