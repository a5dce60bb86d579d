"""Tables and packed files hold the same documents as plain ones; what is wrong with them is told in
one sentence."""

from __future__ import annotations

import builtins
import gzip
import json
import time

import pytest

from data.test_corpus import Bytes, jsonl, write
from folders import write_json
from glassformer.formats.data import tokenise
from glassformer.formats.data.catalog import find
from glassformer.formats.data.text_streams import unpacked
from mistakes import SENTENCES, mistake

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
ipc = pytest.importorskip("pyarrow.ipc")


def zst(data):
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


TEXTS = ["one\ntwo", "", None, "drei ü", "x" * 3000] * 300
FULL = [text for text in TEXTS if text]


def table(texts, field="text", kind=None):
    return pyarrow.table({field: pyarrow.array(texts, kind), "number": list(range(len(texts)))})


def saved(folder, texts, shards):
    """A folder as `datasets` 4 saves it (compared once with what it writes)."""
    folder.mkdir(parents=True)
    full = table(texts)
    names = [f"data-{at:05}-of-{shards:05}.arrow" for at in range(shards)]
    size = -(-len(texts) // shards)
    for at, name in enumerate(names):
        with ipc.new_stream(str(folder / name), full.schema) as file:
            file.write_table(full.slice(at * size, size), max_chunksize=100)
    write_json(folder / "state.json", {"_data_files": [{"filename": name} for name in names]})
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
)
def test_a_parquet_file_is_a_document_a_row(tmp_path, kind):
    path = tmp_path / "a.parquet"
    parquet.write_table(
        table(TEXTS, "body", pyarrow.string()).set_column(
            0, "body", table(TEXTS).column(0).cast(kind)
        ),
        path,
        row_group_size=400,
    )
    source = find(path, field="body")
    assert list(source.documents()) == FULL
    reads = [piece.bytes_read for piece in source.pieces()]
    assert reads == sorted(reads)
    assert reads[0] < reads[-1] == source.size


def test_folders_of_hugging_face(tmp_path):
    assert list(find(saved(tmp_path / "one", TEXTS, 3)).documents()) == FULL
    pair = tmp_path / "both"
    saved(pair / "train", TEXTS[:10], 2), saved(pair / "test", TEXTS, 1)
    (pair / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source = find(pair)
    assert list(source.documents()) == [text for text in TEXTS[:10] if text]
    assert source.notes == ("both: the split train is read, not test.",)
    assert list(find(pair / "test").documents()) == FULL


def test_a_clone_of_a_hub_repository_is_its_tables_of_the_training_split(tmp_path):
    for name, texts in (
        ("train-00000-of-00002", ["a"]),
        ("train-00001-of-00002", ["b"]),
        ("test-00000-of-00001", ["c"]),
    ):
        (tmp_path / "data").mkdir(exist_ok=True)
        parquet.write_table(table(texts), tmp_path / "data" / f"{name}.parquet")
    write(tmp_path / "README.md", "about it")
    source = find(tmp_path)
    assert list(source.documents()) == ["a", "b"]
    assert sorted(source.notes) == [
        "README.md left out: no table",
        "data/test-00000-of-00001.parquet left out: not of the split train",
    ]
    for path in (tmp_path / "data").glob("train*"):
        path.rename(path.with_name(path.name.replace("train", "strained")))
    assert list(find(tmp_path).documents()) == ["a", "b", "c"]  # no name tells of a training split


def test_zst_is_unpacked_as_gz_is(tmp_path):
    plain = jsonl(tmp_path / "a.jsonl", FULL)
    half = plain.read_bytes()[:5000], plain.read_bytes()[5000:]
    packed = write(
        tmp_path / "b.jsonl.zst", b"".join(map(zst, half))
    )  # two frames, as parallel writers leave
    assert list(find(packed).documents()) == list(find(plain).documents()) == FULL
    text = write(tmp_path / "c.txt.zst", zst(("word " * 50_000).encode()))
    assert list(find(text).documents()) == ["word " * 50_000]
    with text.open("rb") as raw:
        assert unpacked(raw, text).read(7) == b"word wo"
    folder = write(tmp_path / "f" / "b.jsonl.zst", packed.read_bytes()).parent
    assert list(find(folder).documents()) == FULL


def test_zst_takes_time_in_proportion_to_its_text_and_memory_in_proportion_to_little(
    tmp_path,
):
    line = b"the cat sat on the mat and looked at me. " * 100
    path = write(tmp_path / "a.txt.zst", zst(line * 16_000))  # 64 MiB in 6 kB

    began = time.process_time()
    size = 0
    most = 0
    with path.open("rb") as raw:
        opened = unpacked(raw, path)
        while block := opened.read(1 << 16):
            size, most = size + len(block), max(most, pyarrow.total_allocated_bytes())
    seconds = time.process_time() - began
    # 15 s where each read copied the others
    assert size == len(line) * 16_000
    assert seconds < 5
    assert most < 16 << 20


def broken(folder, name):
    """Something that cannot be read, by its name."""
    folder.mkdir()
    lines = b"".join(json.dumps({"text": f"{n} " * 50}).encode() + b"\n" for n in range(5000))
    path = folder / name
    match name:
        case "cut.jsonl.gz":
            path.write_bytes(gzip.compress(lines)[:-2000])
        case "flipped.jsonl.gz":
            data = bytearray(gzip.compress(lines))
            data[len(data) // 2] ^= 255
            path.write_bytes(bytes(data))
        case "cut.jsonl.zst" | "cut.txt.zst":
            path.write_bytes(zst(lines)[:-2000])
        case "none.jsonl.zst":
            path.write_bytes(b"this is not zstd")
        case "field.jsonl.zst":
            path.write_bytes(zst(b'{"text": "a"}\n{"words": "b"}\n'))
        case "none.parquet":
            path.write_bytes(b"PAR1 this is none PAR1")
        case "cut.parquet":
            parquet.write_table(table(FULL), path)
            path.write_bytes(path.read_bytes()[:-100])
        case "column.parquet":
            parquet.write_table(table(FULL, "words"), path)
        case "twice.parquet":
            parquet.write_table(table(FULL).rename_columns(["text", "text"]), path)
        case "numbers.parquet":
            parquet.write_table(table(FULL).rename_columns(["other", "text"]), path)
        case "lost" | "cutarrow":
            saved(path, TEXTS, 2)
            shard = path / "data-00001-of-00002.arrow"
            shard.unlink() if name == "lost" else shard.write_bytes(shard.read_bytes()[:300_000])
        case "nosplit":
            write(path / "dataset_dict.json", '{"splits": ["test", "dev"]}')
        case "nostate":
            write(path / "dataset_dict.json", '{"splits": ["train"]}')
        case "badstate":
            write(path / "state.json", '{"_data_files": 3}')
        case "outside":
            write(path / "state.json", '{"_data_files": [{"filename": "../../etc/passwd"}]}')
    return path


@pytest.mark.parametrize("name, words", SENTENCES["tables"])
def test_what_cannot_be_read_is_told_in_one_sentence(tmp_path, name, words):
    path = broken(tmp_path / "bad", name)
    with mistake(None, str(path), *words) as caught:
        tokenise(find(path), Bytes(), cache=tmp_path / "cache")
    assert str(caught.value).endswith(".")
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").glob("[!.]*")) == []


@pytest.mark.parametrize("name, package", [("a.parquet", "pyarrow"), ("a.jsonl.zst", "pyarrow")])
def test_without_the_packages_their_name_is_said(tmp_path, monkeypatch, name, package):
    real = builtins.__import__

    def missing(expected, *args):
        if expected.partition(".")[0] == package:
            raise ImportError(expected)
        return real(expected, *args)

    path = write(tmp_path / name, b"anything")
    monkeypatch.setattr(builtins, "__import__", missing)
    with mistake(
        rf"read by {package}, which is missing: pip install "
        rf"{package}"
    ):
        list(find(path).documents())
