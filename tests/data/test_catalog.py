"""Named corpora: Python's own text without a network or an import, and downloads checked by
hash."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import urllib.error
import urllib.request
from io import BytesIO

import pytest

from glassformer.formats.data import catalog, python_docs
from glassformer.formats.data.catalog import Download, Published, corpora, find
from mistakes import mistake

CONTENT = b"anna\nbob\ncarla\ndora\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty cache, no data folder, and no network."""
    monkeypatch.setenv("GLASSFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GLASSFORMER_DATA", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    return tmp_path


def unreachable(*args, **settings):
    raise urllib.error.URLError("no route to host")


def small(monkeypatch, **settings):
    file = Download(
        "small/small.txt", "https://example.org/small.txt", hashlib.sha256(CONTENT).hexdigest()
    )
    corpus = Published("small", "nowhere", "CC0", (file,), **settings)
    monkeypatch.setitem(catalog.PUBLISHED, "small", corpus)


@pytest.mark.slow
def test_python_docs_needs_nothing_and_is_always_the_same(home, monkeypatch):
    sysconfig.get_path("stdlib")  # loads its own table
    modules = set(sys.modules)
    source = find(python_docs.NAME)
    assert set(sys.modules) == modules
    summary = source.summary()
    assert summary.bytes > 1_500_000
    assert summary.documents > 4_000
    assert summary.licence == "PSF-2.0"
    texts = list(source.documents())
    assert len(set(texts)) == len(texts)
    assert any(
        "def os.makedirs(name, mode=511, exist_ok=False)\n\nmakedirs(name" in text for text in texts
    )
    assert any('The "if" statement' in text for text in texts)
    assert not any("test.test_" in text.splitlines()[0] for text in texts)
    first = source.path.read_bytes()
    digest = source.digest()
    source.path.write_bytes(first[:-10])  # a damaged cache is noticed and made again, byte for byte
    again = find("python-docs")
    assert again.path.read_bytes() == first
    assert again.digest() == digest


def test_a_download_is_checked_and_kept(home, monkeypatch):
    small(monkeypatch, separator="\n")
    requests = []

    def answer(url, timeout):
        requests.append(url)
        return BytesIO(CONTENT)

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert list(find("small").documents()) == ["anna", "bob", "carla", "dora"]
    assert list(find("small").documents()) == ["anna", "bob", "carla", "dora"]
    assert requests == ["https://example.org/small.txt"]
    (home / "cache" / "corpora" / "small" / "small.txt").write_bytes(CONTENT[:-5])
    assert len(list(find("small").documents())) == 4
    assert len(requests) == 2


def test_a_wrong_download_is_not_kept(home, monkeypatch):
    small(monkeypatch)
    monkeypatch.setattr(
        urllib.request, "urlopen", lambda url, timeout: BytesIO(b"<html>Please log in</html>")
    )
    with mistake("not the expected file"):
        find("small")
    assert not (home / "cache" / "corpora" / "small" / "small.txt").exists()


def test_without_a_network_the_sentence_says_what_to_set(monkeypatch):
    small(monkeypatch)
    with mistake(
        r"no route to "
        r"host.*GLASSFORMER_DATA.*small/small\.txt.*python-docs"
    ):
        find("small")


def test_a_file_of_the_data_folder_is_found_by_its_path(home, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DATA", str(home / "data"))
    (home / "data" / "mine").mkdir(parents=True)
    (home / "data" / "mine" / "a.txt").write_text("far away\n")
    assert [*find("mine/a.txt").texts()] == ["far away\n"]
    monkeypatch.chdir(home)
    (home / "mine").mkdir()
    (home / "mine" / "a.txt").write_text("here\n")
    assert [*find("mine/a.txt").texts()] == ["here\n"]
    with mistake(r"mine/b\.txt does not exist"):
        find("mine/b.txt")


def test_the_users_own_data_folder_goes_first(home, monkeypatch):
    small(monkeypatch, separator="\n", mixed=True)
    (home / "data" / "small").mkdir(parents=True)
    (home / "data" / "small" / "small.txt").write_bytes(CONTENT)
    monkeypatch.setenv("GLASSFORMER_DATA", str(home / "data"))
    names = list(find("small").documents())
    assert sorted(names) == ["anna", "bob", "carla", "dora"]
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    (home / "data" / "small" / "small.txt").write_bytes(CONTENT + b"eve\n")
    with mistake("SHA-256 differs"):
        find("small")


def test_real_corpora_are_what_they_should_be(shared_data, monkeypatch):
    monkeypatch.setenv("GLASSFORMER_DATA", str(shared_data))
    result = {name: find(name).summary() for name in ("shakespeare", "names", "tinystories")}
    assert {name: summary.documents for name, summary in result.items()} == {
        "shakespeare": 1,
        "names": 32033,
        "tinystories": 6235,
    }
    assert result["shakespeare"].bytes == 1115394


def test_corpora_are_listed_with_origin_and_licence():
    assert [corpus.name for corpus in corpora()] == [
        "python-docs",
        "shakespeare",
        "tinystories",
        "names",
    ]
    assert all(corpus.description and corpus.origin and corpus.licence for corpus in corpora())


def test_no_name_is_not_the_folder_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "other.txt").write_text("a text that nobody named")
    monkeypatch.chdir(tmp_path)
    with mistake('no file, folder or named corpus ""'):
        find("")
