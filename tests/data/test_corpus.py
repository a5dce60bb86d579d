"""Corpora are streamed, kept apart, counted exactly; shards are cached by content and survive
damage."""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import tracemalloc
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np
import pytest

from glassformer.core.config.objective import Contrast
from glassformer.formats.data import corpus, tokenising
from glassformer.formats.data.catalog import find
from glassformer.formats.data.corpus import PIECE, Source
from glassformer.formats.data.splits import split_corpus, spread_corpus
from glassformer.formats.data.tokenising import tokenise
from glassformer.formats.tokenizer_forms import from_json
from glassformer.tasks import records
from mistakes import mistake


class Bytes:
    """A tokenizer whose ids are the bytes of the text; ``record`` notes who used it."""

    adds_prefix = False

    def __init__(
        self,
        eos=256,
        bos=None,
        size=258,
        record=None,
    ):
        self.eos, self.bos, self.size, self.record = eos, bos, size, record
        self.fingerprint = f"bytes {size}"

    def encode_batch(self, texts):
        if self.record:
            with self.record.open("a") as file:
                file.write(f"{os.getpid()}\n")
        return [list(text.encode()) for text in texts]

    def encoder(self, characters):
        return self.encode_batch

    def encode_continuation(self, text):
        return list(text.encode()), self.offsets(text)

    def offsets(self, text):
        return [(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(path, texts, field="text"):
    return write(path, "".join(json.dumps({field: text}) + "\n" for text in texts))


# ------------------------------------------------------------------------------------- reading


def test_a_file_is_one_document_whatever_its_length(tmp_path):
    text = "".join(f"line {number} of a long text, ünïcödé\n" for number in range(12_000))
    source = find(write(tmp_path / "long.txt", text))
    pieces = list(source.pieces())
    assert len(pieces) > 3
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(source.texts()) == text
    assert list(source.documents()) == [text]
    assert pieces[-1].bytes_read == source.size
    assert all(piece.text.endswith("\n") for piece in pieces[:-1])


def test_pieces_are_cut_where_a_word_level_tokenizer_splits_anyway(tmp_path, shared_data):
    gpt2 = from_json((shared_data / "tok-gpt2" / "tokenizer.json").read_text())
    text = (shared_data / "tinyshakespeare" / "input.txt").read_text()[: 6 * PIECE]
    for name, changed in (
        ("lines", text),
        ("no lines", text.replace("\n", " ")),
        ("crlf", text.replace("\n", "\r\n")),
    ):
        pieces = list(find(write(tmp_path / name, changed)).texts())
        assert len(pieces) > 2
        apart = [token for ids in gpt2.encode_batch(pieces) for token in ids]
        assert apart == gpt2.encode(changed), name


def test_text_without_any_border_is_still_cut(tmp_path):
    text = "長" * (5 * PIECE)
    pieces = list(find(write(tmp_path / "a.txt", text)).texts())
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 3 * PIECE


def test_folder_is_every_text_file_sorted_and_says_what_it_left_out(tmp_path):
    write(tmp_path / "b.txt", "bee")
    write(tmp_path / "a" / "deep.md", "deep")
    write(tmp_path / "c.bin", b"\x00\x01\x02")
    write(tmp_path / "latin.txt", "é".encode("latin-1"))
    write(tmp_path / "empty.txt", "")
    write(tmp_path / ".git" / "config", "hidden")
    jsonl(tmp_path / "d.jsonl", ["one", "two"])
    source = find(tmp_path)
    assert list(source.documents()) == ["deep", "bee", "one", "two"]
    assert sorted(source.notes) == [
        ".git/config left out: hidden",
        "c.bin left out: not readable as UTF-8 text",
        "empty.txt left out: empty",
        "latin.txt left out: not readable as UTF-8 text",
    ]


def test_jsonl_and_gzip(tmp_path):
    texts = ["one\ntwo", "", "drei ü", "\ud83d lone surrogate"]
    plain = jsonl(tmp_path / "a.jsonl", texts, field="body")
    for path in (plain, write(tmp_path / "a.jsonl.gz", gzip.compress(plain.read_bytes()))):
        assert list(find(path, field="body").documents()) == [
            "one\ntwo",
            "drei ü",
            "\ufffd lone surrogate",
        ]


def test_documents_between_separators(tmp_path):
    texts = [
        "  indented\n\ttoo  ",
        "x" * (PIECE - 20),
        "y" * (2 * PIECE),
        "\ufeff in the middle",
        "end",
    ]
    path = write(tmp_path / "a.txt", "<|end|>\n".join(texts))  # some lie across two blocks
    assert list(find(path, separator="<|end|>").documents()) == texts
    tokens = [
        shards_of(find(path, separator=mark), tmp_path).documents for mark in (None, "<|end|>", "y")
    ]
    assert tokens[:2] == [1, 5]
    assert tokens[2] > 1  # the cache knows how the file was parted
    path.rename(write(tmp_path / "both" / "b.txt", "more").with_name("a.txt"))
    reads = [piece.bytes_read for piece in find(tmp_path / "both").pieces()]
    assert reads == sorted(reads)
    assert reads[-1] == find(tmp_path / "both").size > reads[0] > len("more")


def test_summary_counts_documents_and_bytes(tmp_path):
    summary = find(jsonl(tmp_path / "a.jsonl", ["ab", "ü"])).summary()
    assert (summary.documents, summary.bytes, summary.files) == (2, 4, 1)


def test_a_byte_order_mark_is_no_text(tmp_path):
    assert list(find(write(tmp_path / "a.txt", b"\xef\xbb\xbfhello")).documents()) == ["hello"]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("a.txt", b"", "is empty; give a file"),
        ("a.txt", b"fine" + b"x" * PIECE + b"\0", f"binary file (a zero byte at byte {PIECE + 4})"),
        ("a.txt", b"fine" + b"x" * PIECE + b"\xff", f"not UTF-8 text (byte {PIECE + 4})"),
        ("a.txt", "cut in a character ü".encode()[:-1], "not UTF-8 text (byte 19)"),
        (
            "a.jsonl",
            b'{"text": "a"}\n\n{"title": "b", "n": 3}\n',
            'line 3 has no text field "text"',
        ),
        ("a.jsonl", b'{"text": "a"}\n\n{"title": "b", "n": 3}\n', "(there: title)"),
        ("a.jsonl", b'{"n": 3}\n', "say which by --field, in a training by --data.field"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("a.jsonl", b'{"text": ""}\n', "holds no text"),
        ("a.txt.gz", b"not gzip at all", "cannot be read"),
        ("a.txt.gz", gzip.compress(b"hello" * 100, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_what_is_no_text_is_told_in_one_sentence(tmp_path, name, content, words):
    path = write(tmp_path / name, content)
    with mistake(None, words, str(path)):
        tokenise(find(path), Bytes(), cache=tmp_path / "cache")
    assert list((tmp_path / "cache").glob("[!.]*")) == []  # nothing half-written


def test_missing_paths_suggest_the_nearest(tmp_path, monkeypatch):
    write(tmp_path / "input.txt", "x")
    with mistake(r'Did you mean "input\.txt"'):
        find(tmp_path / "imput.txt")
    monkeypatch.chdir(tmp_path)
    with mistake('Did you mean "shakespeare"'):
        find("shakespear")
    with mistake("holds no text file"):
        find(tmp_path / write(tmp_path / "f" / ".hidden", "x").parent)


# -------------------------------------------------------------------------------------- shards


def shards_of(source, tmp_path, tokenizer=None):
    return tokenise(source, tokenizer or Bytes(), cache=tmp_path / "cache")


def test_documents_lie_end_to_end_each_closed(tmp_path):
    texts = ["hello", "ü", "x" * (PIECE * 9)]
    source = find(jsonl(tmp_path / "a.jsonl", texts))
    for tokenizer in (Bytes(), Bytes(bos=257), Bytes(eos=None), Bytes(bos=256)):
        shards = shards_of(source, tmp_path, tokenizer)
        opening = [257] if tokenizer.bos == 257 else []
        closing = [] if tokenizer.eos is None else [tokenizer.eos]
        for text, start, end in zip(texts, shards.starts[:-1], shards.starts[1:], strict=True):
            assert shards.tokens[start:end].tolist() == [*opening, *text.encode(), *closing]
        assert shards.starts[0] == 0
        assert shards.starts[-1] == len(shards) == len(shards.tokens)
        assert shards.documents == 3
        assert shards.bytes == len("".join(texts).encode())
        assert isinstance(shards.tokens, np.memmap)
        assert shards.tokens.dtype == np.uint16
        assert shards.shared_border == (tokenizer.eos is not None and tokenizer.bos != 257)


def test_many_ids_take_four_bytes(tmp_path):
    source = find(write(tmp_path / "a.txt", "hello"))
    assert shards_of(source, tmp_path, Bytes(size=65536)).tokens.dtype == np.uint16
    assert shards_of(source, tmp_path, Bytes(size=65537)).tokens.dtype == np.uint32


def test_progress_reaches_the_end(tmp_path):
    source = find(write(tmp_path / "a.txt", "word " * (PIECE * 4)))
    calls = []
    tokenise(
        source,
        Bytes(),
        cache=tmp_path / "c",
        workers=2,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert len(calls) > 2
    assert calls == sorted(calls)
    assert calls[-1] == (source.size, source.size)


def test_split_of_one_document_is_nanogpts(tmp_path):
    text = "aüb漢c\n" * 50_000
    shards = shards_of(find(write(tmp_path / "a.txt", text)), tmp_path, Bytes(eos=None))
    train, valid = split_corpus(shards, 0.1)
    data = text.encode()
    assert len(train) == int(len(data) * 0.9)
    assert bytes(train.tokens.tolist()) + bytes(valid.tokens.tolist()) == data
    assert train.bytes + valid.bytes == len(data)
    assert 0 <= train.bytes - len(train) < 3  # a character cut in two is counted where it begins
    again, remaining = split_corpus(valid, 0.5)
    assert again.bytes + remaining.bytes == valid.bytes
    assert again.starts.tolist() == [0, len(again)]
    source = find(write(tmp_path / "c.txt", "a" * 999))
    opened, _ = split_corpus(shards_of(source, tmp_path, Bytes(bos=257, eos=None)), 0.1)
    assert (len(opened), opened.bytes) == (900, 899)  # the bos is not a text
    short = shards_of(find(write(tmp_path / "b.txt", "0123456789")), tmp_path, Bytes(eos=None))
    assert [len(side) for side in split_corpus(short, 0.9)] == [
        1,
        9,
    ]  # 1 - 0.9 is a little less than 0.1


def test_split_inside_a_document_counts_bytes_by_its_tokens(tmp_path, shared_data):
    """With a published tokenizer: the text before the cut is what its tokens spell."""
    gpt2 = from_json((shared_data / "tok-gpt2" / "tokenizer.json").read_text())
    shards = tokenise(
        find(shared_data / "tinyshakespeare" / "input.txt"), gpt2, cache=tmp_path / "cache"
    )
    train, valid = split_corpus(shards, 0.1)
    assert train.bytes == len(gpt2.decode(train.tokens.tolist()).encode())
    assert train.bytes + valid.bytes == shards.bytes == 1115394


def test_split_of_many_documents_is_at_a_border(tmp_path):
    texts = [f"document {number} " * (number % 7 + 1) for number in range(300)]
    shards = shards_of(find(jsonl(tmp_path / "a.jsonl", texts)), tmp_path)
    train, valid = split_corpus(shards, 0.1)
    assert train.documents + valid.documents == 300
    assert abs(len(valid) / len(shards) - 0.1) < 0.01
    assert valid.starts[0] == 0
    assert valid.starts[-1] == len(valid)
    assert np.shares_memory(valid.borders, shards.corpus.starts)  # a billion of them cost nothing
    assert valid.bytes == sum(len(text) for text in texts[train.documents :])
    assert bytes(valid.tokens[: valid.starts[1] - 1].tolist()).decode() == texts[train.documents]


def test_split_of_two_long_documents_goes_through_the_second(tmp_path):
    shards = shards_of(find(jsonl(tmp_path / "a.jsonl", ["a" * 500, "b" * 500])), tmp_path)
    train, valid = split_corpus(shards, 0.1)
    assert train.documents == 2
    assert (valid.documents, valid.bytes) == (1, 100)
    near = shards_of(find(jsonl(tmp_path / "b.jsonl", ["a" * 880, "b" * 120])), tmp_path)
    # the border before the place is the nearer one
    assert [side.bytes for side in split_corpus(near, 0.1)] == [880, 120]
    with mistake("share"):
        split_corpus(shards, 1.5)


def test_a_spread_split_holds_out_some_of_every_kind(tmp_path):
    """A file whose end is of another kind: both kinds are held out, and every byte is on one side,
    once."""
    kinds = "".join(letter * 1000 for letter in "abcdefghij")
    shards = shards_of(find(write(tmp_path / "a.txt", kinds)), tmp_path)
    pieces = spread_corpus(shards, 0.1, 10)
    remaining = b"".join(bytes(valid.tokens[:100].tolist()) for _, valid in pieces)
    assert remaining.decode() == "".join(letter * 100 for letter in "abcdefghij")
    joined = np.concatenate([np.asarray(side.tokens) for piece in pieces for side in piece])
    assert np.array_equal(joined, shards.tokens)
    assert sum(side.bytes for piece in pieces for side in piece) == len(kinds)
    assert [len(side.tokens) for side in spread_corpus(shards, 0.1, 1)[0]] == [
        len(side.tokens) for side in split_corpus(shards, 0.1)
    ]
    shuffled = shards_of(
        find(jsonl(tmp_path / "a.jsonl", [f"document {n} " * 5 for n in range(300)])), tmp_path
    )
    for train, valid in spread_corpus(shuffled, 0.1, 10):
        # whole documents
        assert valid.starts[0] == train.starts[0] == 0
        assert valid.bytes % 5 == train.bytes % 5 == 0


def test_cache_follows_content_and_tokenizer(tmp_path):
    record = tmp_path / "calls"
    path = write(tmp_path / "a.txt", "hello")
    before = path.stat()

    def runs(tokenizer):
        had = len(record.read_text().split()) if record.exists() else 0
        shards_of(find(path), tmp_path, tokenizer)
        return len(record.read_text().split()) - had

    assert runs(Bytes(record=record)) == 1
    assert runs(Bytes(record=record)) == 0
    assert runs(Bytes(record=record, size=300)) == 1
    assert runs(Bytes(record=record, eos=None)) == 1
    path.write_text("jello")  # same size, and made to look as old
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert runs(Bytes(record=record)) == 1
    path.rename(tmp_path / "b.txt")
    path = tmp_path / "b.txt"
    assert runs(Bytes(record=record)) == 0


@pytest.mark.parametrize("name", ["tokens.bin", "starts.bin", "marks.bin", "shards.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_an_entry_of_another_sha256_is_made_again(tmp_path, name, damage):
    source = find(jsonl(tmp_path / "a.jsonl", ["hello", "world"]))
    values = shards_of(source, tmp_path).tokens.tolist()
    (file,) = (tmp_path / "cache").glob(f"*/{name}")
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[:-3])
    else:
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert shards_of(source, tmp_path).tokens.tolist() == values
    assert file.read_bytes() == content


def _tokenise(folder, go):
    go.wait(30)
    tokenizer = Bytes(record=Path(folder) / "calls")
    assert (
        len(tokenise(find(Path(folder) / "a.txt"), tokenizer, cache=Path(folder) / "cache"))
        == 5 * PIECE + 1
    )


def test_two_processes_at_once_do_the_work_once(tmp_path):
    write(tmp_path / "a.txt", "word " * PIECE)
    context = multiprocessing.get_context("spawn")
    go = context.Barrier(2)
    pair = [context.Process(target=_tokenise, args=(str(tmp_path), go)) for _ in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
    assert [process.exitcode for process in pair] == [0, 0]
    assert len(set((tmp_path / "calls").read_text().split())) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.name.endswith(".part")] == []


def test_a_crash_while_tokenising_leaves_nothing(tmp_path):
    class Broken(Bytes):
        def encode_batch(self, texts):
            raise RuntimeError("out of luck")

    source = find(write(tmp_path / "a.txt", "hello"))
    with pytest.raises(RuntimeError):
        shards_of(source, tmp_path, Broken())
    assert list((tmp_path / "cache").glob("[!.]*")) == []
    assert len(shards_of(source, tmp_path)) == 6


def test_an_unwritable_cache_is_told(tmp_path):
    source = find(write(tmp_path / "a.txt", "hello"))
    with mistake("a file stands in its way"):
        tokenise(source, Bytes(), cache=tmp_path / "a.txt" / "cache")


def test_a_disk_that_takes_no_more_leaves_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    source = find(write(tmp_path / "a.txt", "word " * PIECE))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with mistake("File too large"):
            shards_of(source, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [
        path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")
    ] == []
    assert len(shards_of(source, tmp_path)) == 5 * PIECE + 1


def test_a_file_that_is_gone_is_told(tmp_path):
    source = find(write(tmp_path / "a.txt", "hello"))
    source.path.unlink()
    with mistake("cannot be read"):
        shards_of(source, tmp_path)
    with mistake("cannot be read"):
        list(source.documents())


class AtOnce(Executor):
    """Threads that are always ahead: what is handed to them is done before the next line. The most
    that can be held."""

    def __init__(self, workers):
        pass

    def submit(self, work, /, *args, **named):
        future = Future()
        future.set_result(work(*args, **named))
        return future


def test_memory_stays_flat(tmp_path, monkeypatch):
    """Four times the file, the same peak: also for a single document."""
    monkeypatch.setattr(tokenising, "pool", lambda workers: contextlib.nullcontext(AtOnce(workers)))
    peaks = []
    for size in (4_000_000, 16_000_000):
        source = find(write(tmp_path / f"{size}.txt", b"a line of some words\n" * (size // 21)))
        tracemalloc.start()
        tokenise(source, Bytes(), cache=tmp_path / "cache", workers=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 10_000_000


def test_tokens_of_a_published_corpus(tmp_path, shared_data):
    """Our shards of TinyStories are, id for id, the ones that others published."""
    gpt2 = from_json((shared_data / "tok-gpt2" / "tokenizer.json").read_text())
    source = Source(
        "val",
        shared_data,
        (corpus.CorpusFile(shared_data / "tinystories" / "val.txt", "<|endoftext|>"),),
    )
    reference = np.fromfile(shared_data / "tinystories" / "val.bin", np.uint16)
    assert np.array_equal(tokenise(source, gpt2, cache=tmp_path / "cache").tokens, reference)


def test_a_damaged_gzip_file_and_a_number_without_end(tmp_path):
    full = bytearray(gzip.compress(b'{"text": "the cat sat", "target": "a"}\n' * 500))
    for number, content in enumerate(
        (full[:40] + b"x" * 9, full[:30], full[:20] + b"\xff" + full[21:], b"no gzip")
    ):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(content)
        with mistake("cannot be read"):
            list(find(tmp_path / f"{number}.jsonl.gz").documents())
        with mistake("cannot be read"):
            list(records.records(str(tmp_path / f"{number}.jsonl.gz"), Contrast(), {})[1])
    (tmp_path / "n.jsonl").write_text('{"text": "a", "n": ' + "9" * 5000 + "}\n")
    with mistake("line 1 is not valid JSON"):
        list(find(tmp_path / "n.jsonl").documents())
