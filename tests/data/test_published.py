"""Published examples by name: the user's folder, the cache, the network, and what is not the
published file."""

from __future__ import annotations

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.core import files
from glassformer.formats.data import catalog
from mistakes import mistake

NAME = "scan/tasks_test_simple.txt"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GLASSFORMER_DATA", raising=False)


def test_the_data_folder_holds_what_is_published(shared_data, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    for place in catalog.example_files():
        assert catalog.locate(place) == shared_data / place


def test_a_path_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files.write(Path(NAME), "IN: jump OUT: I_JUMP\n")
    assert catalog.locate(NAME) == Path(NAME)
    assert catalog.locate("some/where.tsv") == Path("some/where.tsv")


def test_another_file_of_that_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DATA", str(tmp_path))
    files.write(tmp_path / NAME, "IN: jump OUT: I_JUMP\n")
    with mistake("SHA-256"):
        catalog.locate(NAME)


def test_fetched_once_and_checked(monkeypatch):
    content = b"IN: jump OUT: I_JUMP\n"
    requests = []
    scan = catalog.PUBLISHED["scan"]
    (was,) = (file for file in scan.files if file.place == NAME)
    file = replace(was, sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(catalog.PUBLISHED, "scan", replace(scan, files=(file,)))

    def answer(url, timeout):
        requests.append(url)
        return io.BytesIO(content)

    monkeypatch.setattr(catalog.urllib.request, "urlopen", answer)
    for _ in range(2):
        assert catalog.locate(NAME).read_bytes() == content
    assert len(requests) == 1
    assert requests[0] == was.url
    assert requests[0].startswith("https://raw.githubusercontent.com/brendenlake/SCAN/c4b756c")


def test_no_network_is_one_sentence(monkeypatch):
    def refuse(url, timeout):
        raise OSError("no network")

    monkeypatch.setattr(catalog.urllib.request, "urlopen", refuse)
    with mistake("GLASSFORMER_DATA"):
        catalog.locate(NAME)
    with mistake("mean"):
        catalog.locate("scan/tasks_test_simpel.txt")
