"""The one reader of JSON files: what is wrong with a file, in one sentence, and what to do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import tiny
from glassformer.core import files
from glassformer.core.checkpoints.headers import INDEX
from glassformer.formats import store
from glassformer.runs import run_file
from mistakes import mistake


def test_a_json_object_is_read_whole(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": [1, 2], "b": "é"}', encoding="utf-8")
    assert files.read_json(path) == {"a": [1, 2], "b": "é"}


@pytest.mark.parametrize(
    "content, why",
    [
        (b"{", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b'{"a": "\xff"}', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"[1]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (None, "cannot be read"),
    ],
)
def test_what_holds_no_json_object_is_refused_by_name_with_what_to_do(tmp_path, content, why):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with mistake(f"config.json {why}.*; download it again.$"):
        files.read_json(path, "download it again")


def test_a_folder_is_not_read_as_json(tmp_path):
    with mistake("cannot be read"):
        files.read_json(tmp_path)


@pytest.mark.parametrize(
    "make, why",
    [
        (lambda path: path.symlink_to("/dev/zero"), "not a file"),
        (os.mkfifo, "not a file"),
        (
            lambda path: path.touch() or os.truncate(path, files.LARGEST + 1),
            "more than 268,435,456",
        ),
    ],
)
def test_devices_pipes_and_endless_files_are_refused_and_nobody_waits(tmp_path, make, why):
    make(tmp_path / "config.json")
    with mistake(f"config.json cannot be read .*{why}.*; download it again.$"):
        files.read_json(tmp_path / "config.json", "download it again")


def test_a_text_comes_through_a_pipe_and_an_endless_one_ends(tmp_path):
    path = tmp_path / "run.toml"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"steps = 3\n",))
    writer.start()
    assert files.read_toml(path) == {"steps": 3}
    writer.join()
    with mistake("/dev/zero cannot be read .it has more than 268,435,456 bytes"):
        files.read_toml(Path("/dev/zero"))
    with pytest.raises(OSError, match="more than 5 bytes"):
        files.read_text(Path("/dev/zero"), 5)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "run.json", INDEX])
def test_a_pipe_in_a_model_folder_is_named(tmp_path, name):
    model = tiny.model(tiny.gpt2())
    store.save(model, tmp_path / "model")
    if name == INDEX:
        (tmp_path / "model" / "model.safetensors").unlink()
    path = tmp_path / "model" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    if name == "run.json":
        assert run_file.saved_run(tmp_path / "model") is None
        return
    with mistake(f"{name} cannot be read .it is not a file"):
        store.load(tmp_path / "model")


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077, 0o002])
def test_files_and_folders_have_the_rights_that_the_umask_leaves(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.write(tmp_path / "file", "x")
        with files.write_folder(tmp_path / "folder") as folder:
            files.write(folder / "inside", "x")
    finally:
        os.umask(before)
    rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert rights == {"file": 0o666 & ~umask, "inside": 0o666 & ~umask, "folder": 0o777 & ~umask}
