"""Published tokenizers: every file of one gives the same ids, and the ids of an implementation we
did not write."""

from __future__ import annotations

import base64
import errno
import json
import unicodedata
from collections.abc import Callable

import numpy as np
import pytest

from folders import snapshot, write_json
from glassformer.core import files
from glassformer.core.tokenizer import train
from glassformer.formats.tokenizer_files import open as open_tokenizer
from mistakes import mistake
from tokenizer.test_tokenizer import NASTY, SPECIAL, streamed

Encode = Callable[[str], list[int]]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def samples(shared_data):
    """Nasty texts, and real ones: an encyclopedia, German and French captions, dialogue as JSON,
    Shakespeare."""
    names = [
        "wikitext-2-raw/wiki.test.raw",
        "multi30k/train.de",
        "multi30k/train.fr",
        "tinyshakespeare/input.txt",
    ]
    result = [(shared_data / name).read_text(encoding="utf-8")[:30_000] for name in names]
    return [*NASTY, *SPECIAL, *result]


def check_equal(tokenizer, reference, samples):
    """Every sample has the reference's ids, and a stream of them is their text."""
    for sample, ids in zip(samples, tokenizer.encode_batch(samples), strict=True):
        assert ids == reference(sample), repr(sample[:60])
        assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def tiktoken_of(path, pattern):
    tiktoken = pytest.importorskip("tiktoken")
    lines = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding = tiktoken.Encoding(
        "theirs", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
    )
    return lambda sample: encoding.encode(sample, disallowed_special=())


def sentencepiece_of(path):
    processor = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(path))
    return lambda sample: processor.encode(sample)


def test_gpt2_three_files(shared_data, samples):
    folder = shared_data / "tok-gpt2"
    pattern = pytest.importorskip("tiktoken_ext.openai_public").r50k_pat_str
    for name in ("tokenizer.json", "encoder.json", "vocab.bpe", "gpt2.tiktoken"):
        tokenizer = open_tokenizer(folder / name)
        assert tokenizer.size == 50257
        assert tokenizer.eos == tokenizer.bos == 50256
        check_equal(tokenizer, tiktoken_of(folder / "gpt2.tiktoken", pattern), samples)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["val", "test"])
def test_gpt2_gives_the_published_ids_of_tinystories(shared_data, name):
    folder = shared_data / "tinystories"
    values = np.fromfile(folder / f"{name}.bin", dtype=np.uint16).tolist()
    stories = (folder / f"{name}.txt").read_bytes().decode()
    tokenizer = open_tokenizer(shared_data / "tok-gpt2")
    assert tokenizer.encode(stories, special=True) == values
    assert (
        tokenizer.decode(values, special=True)
        == stories
        == streamed(tokenizer, values, special=True)
    )


def test_a_story_has_its_published_ids(shared_data):
    folder = shared_data / "tinystories"
    values = np.fromfile(folder / "val.bin", dtype=np.uint16, count=60_000).tolist()
    tokenizer = open_tokenizer(shared_data / "tok-gpt2" / "gpt2.tiktoken")
    assert tokenizer.encode(tokenizer.decode(values, special=True), special=True) == values


def test_cl100k(shared_data, samples):
    path = shared_data / "tok-cl100k" / "cl100k_base.tiktoken"
    tokenizer = open_tokenizer(path)
    # tiktoken's own pattern, which is written in another way than ours
    pattern = (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    )
    check_equal(tokenizer, tiktoken_of(path, pattern), samples)
    assert tokenizer.size == 100277
    assert len(tokenizer.specials) == 5
    assert len(tokenizer.vocabulary()) == 100261
    assert tokenizer.encode("<|endofprompt|>", special=True) == [100276]
    assert tokenizer.token(100256) == ""


def test_llama3(shared_data, samples):
    path = shared_data / "tok-llama3" / "tokenizer.model"
    tokenizer = open_tokenizer(path.parent)
    check_equal(tokenizer, tiktoken_of(path, LLAMA3), samples)
    published = [128000, 2028, 7257, 1495, 690, 387, 4037, 1534]
    assert tokenizer.encode("This raw text will be tokenized", bos=True) == published
    assert tokenizer.size == 128256
    assert tokenizer.bos == 128000
    assert tokenizer.eos == 128001
    assert tokenizer.specials["<|eot_id|>"] == 128009
    assert tokenizer.token(128255) == "<|reserved_special_token_247|>"


def test_qwen(shared_data, samples):
    path = shared_data / "tok-qwen" / "qwen.lf.tiktoken"
    reference = tiktoken_of(path, LLAMA3.replace("{1,3}", ""))
    check_equal(
        open_tokenizer(path),
        lambda sample: reference(unicodedata.normalize("NFC", sample)),
        samples,
    )


@pytest.mark.parametrize("case", ["cased", "uncased"])
def test_bert(shared_data, samples, case):
    transformers = pytest.importorskip("transformers")
    path = shared_data / f"tok-bert-{case}" / "vocab.txt"
    bert_tokenizer = transformers.BertTokenizer(str(path), do_lower_case=case == "uncased")
    tokenizer = open_tokenizer(path)
    # theirs reads these out of any text
    plain = [sample for sample in samples if "[CLS]" not in sample]
    check_equal(
        tokenizer, lambda sample: bert_tokenizer.encode(sample, add_special_tokens=False), plain
    )
    assert tokenizer.encode("Hi", bos=True, eos=True) == bert_tokenizer.encode("Hi")
    ids = bert_tokenizer.encode("Don't stop, now .")
    assert tokenizer.decode(ids) == bert_tokenizer.decode(ids, skip_special_tokens=True)
    assert open_tokenizer(path, kind=f"bert-{case}").fingerprint == tokenizer.fingerprint


def test_llama2_both_files(shared_data, samples):
    folder = shared_data / "tok-llama2"
    pieces = open_tokenizer(folder / "tokenizer.model")
    spec = open_tokenizer(folder / "tokenizer.json")
    spaces = [" " * count for count in range(70)] + ["x" + " " * count + "y" for count in range(70)]
    check_equal(pieces, sentencepiece_of(folder / "tokenizer.model"), samples + spaces)
    check_equal(spec, pieces.encode, samples + spaces)
    assert pieces.size == spec.size == 32000
    assert (pieces.bos, pieces.eos, pieces.unk) == (1, 2, 0)
    assert pieces.encode("<s>Hi</s>", special=True) == spec.encode("<s>Hi</s>", special=True)
    assert [pieces.token(id) for id in range(32000) if pieces.token(id) != spec.token(id)] == []


def test_llama2_text_survives(shared_data):
    tokenizer = open_tokenizer(shared_data / "tok-llama2" / "tokenizer.model")
    for sample in NASTY + SPECIAL:
        if "▁" not in sample:  # which is how SentencePiece writes a space
            assert tokenizer.decode(tokenizer.encode(sample)) == sample


def test_t5_both_files(shared_data, samples):
    folder = shared_data / "tok-t5"
    pieces = open_tokenizer(folder / "spiece.model")
    spec = open_tokenizer(folder / "tokenizer.json")
    check_equal(pieces, spec.encode, samples)
    check_equal(
        pieces, sentencepiece_of(folder / "spiece.model"), [s for s in samples if len(s) < 30_000]
    )
    assert pieces.size == spec.size == 32100
    assert pieces.specials == spec.specials
    assert pieces.eos == 1
    assert pieces.encode("a <extra_id_0> b", special=True) == spec.encode(
        "a <extra_id_0> b", special=True
    )
    for sample in SPECIAL:
        assert not {id for id in pieces.encode(sample) if id != pieces.unk} & set(
            pieces.specials.values()
        )


def test_phi3_knows_its_parts_from_its_config(shared_data):
    tokenizer = open_tokenizer(shared_data / "tok-phi3")
    assert tokenizer.size == 32011
    assert tokenizer.token(tokenizer.eos or 0) == "<|endoftext|>"
    assert tokenizer.bos == 1
    llama = open_tokenizer(shared_data / "tok-llama2" / "tokenizer.model")
    for sample in NASTY:
        assert tokenizer.encode(sample) == llama.encode(sample)
    assert 2 not in tokenizer.encode("a </s> b")


def test_stories260k(shared_data, samples):
    path = shared_data / "stories260K" / "tokenizer.model"
    tokenizer = open_tokenizer(path.parent)
    check_equal(tokenizer, sentencepiece_of(path), samples)
    assert (tokenizer.size, tokenizer.bos, tokenizer.eos) == (512, 1, 2)


@pytest.mark.parametrize(
    "name, family",
    [
        ("tok-gpt2/gpt2.tiktoken", "gpt2"),
        pytest.param("tok-llama3", "llama", marks=pytest.mark.slow),
        ("tok-llama2/tokenizer.model", "llama"),
        ("tok-t5/spiece.model", "t5"),
        ("tok-bert-uncased", "bert"),
        ("stories260K", "llama"),
        pytest.param("tok-qwen", "qwen2", marks=pytest.mark.slow),
    ],
)
def test_transformers_opens_what_is_saved(shared_data, tmp_path, name, family):
    transformers = pytest.importorskip("transformers")
    tokenizer = open_tokenizer(shared_data / name)
    tokenizer.save(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": family})
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for sample in NASTY:
        ids = tokenizer.encode(sample)
        assert reference.encode(sample, add_special_tokens=False) == ids
        assert reference.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)
    assert (reference.bos_token_id, reference.eos_token_id) == (tokenizer.bos, tokenizer.eos)
    assert open_tokenizer(tmp_path).fingerprint == tokenizer.fingerprint


@pytest.mark.slow
def test_vocab_and_merges_of_another_split(shared_data, tmp_path):
    """Qwen publishes vocab.json and merges.txt; its config says whose split they need."""
    qwen = open_tokenizer(shared_data / "tok-qwen")
    model = json.loads(qwen.to_json())["model"]
    write_json(tmp_path / "vocab.json", model["vocab"])
    merges = "\n".join(" ".join(pair) for pair in model["merges"])
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}\n", encoding="utf-8")
    added = {str(id): {"content": name, "special": True} for name, id in qwen.specials.items()}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": added,
        "eos_token": "<|im_end|>",
    }
    write_json(tmp_path / "tokenizer_config.json", config)
    tokenizer = open_tokenizer(tmp_path)
    for sample in NASTY:
        assert tokenizer.encode(sample) == qwen.encode(sample)
    assert tokenizer.eos == 151645
    assert tokenizer.size == qwen.size


@pytest.mark.parametrize("stood", [False, True])
def test_both_files_of_a_tokenizer_are_written_or_neither(stood, tmp_path, monkeypatch):
    """As where the disk fills up between them: one file beside another tokenizer's is a mixture."""
    folder = tmp_path / "letters"
    if stood:
        train("byte", []).save(folder)
    before = snapshot(tmp_path)

    def sync(path):
        if "tokenizer_config.json" in path.name:
            raise OSError(errno.ENOSPC, "full", str(path))

    monkeypatch.setattr(files, "sync", sync)
    with mistake("The disk that holds .* is full"):
        train("char", ["abc"]).save(folder)
    assert snapshot(tmp_path) == before
    monkeypatch.undo()
    train("char", ["abc"]).save(folder)
    assert open_tokenizer(folder).encode("cab") == train("char", ["abc"]).encode("cab")
    assert sorted(snapshot(folder)) == ["tokenizer.json", "tokenizer_config.json"]
