"""Named corpora: Python's own reference text (no network), and three small classics, downloaded once.

``GLASSFORMER_DATA`` names a folder that already holds the downloads (tinyshakespeare/input.txt and so on).
"""

from __future__ import annotations

import ast
import gc
import hashlib
import http.client
import json
import platform
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import files
from ..errors import UserError, nearest
from .corpus import Part, Source, in_turn, open_path


@dataclass(frozen=True)
class Download:
    """A file of a corpus: where it lies under ``GLASSFORMER_DATA``, where it is fetched from, its SHA-256."""

    place: str
    url: str | None
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A named corpus; of its alternative ``downloads`` the first set found on the disk is taken, else the last fetched.

    ``mixed`` puts documents in the order of their hashes, so that the last tenth is like the rest.
    """

    name: str
    what: str
    origin: str
    licence: str
    downloads: tuple[tuple[Download, ...], ...] = ()
    separator: str | None = None
    mixed: bool = False


CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            "python-docs",
            "the language reference and the docstrings of the standard library of the Python that runs this",
            "this Python's own files (pydoc_data and the standard library)",
            "PSF-2.0",
        ),
        Corpus(
            "shakespeare",
            "the tiny Shakespeare of char-rnn, one text of 1.1 million characters",
            "github.com/karpathy/char-rnn",
            "public domain",
            (
                (
                    Download(
                        "tinyshakespeare/input.txt",
                        "https://raw.githubusercontent.com/karpathy/char-rnn/"
                        "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
                        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                    ),
                ),
            ),
        ),
        Corpus(
            "tinystories",
            "short stories for small children (Eldan & Li 2023): the validation set",
            "huggingface.co/datasets/roneneldan/TinyStories",
            "CDLA-Sharing-1.0",
            (
                (
                    Download(
                        "tinystories/val.txt", None, "6749f841e58f6ac9d65e7b76fae713e8adeb76e6418e62fb36d2e0252e981147"
                    ),
                    Download(
                        "tinystories/test.txt", None, "56376126bef78b076ebc6fd899a885d02c39e7993152a4a0be76c249cd647ee5"
                    ),
                ),
                (
                    Download(
                        "tinystories/TinyStories-valid.txt",
                        "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/"
                        "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStories-valid.txt",
                        "94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
                    ),
                ),
            ),
            separator="<|endoftext|>",
        ),
        Corpus(
            "names",
            "32,033 first names, one per line (makemore)",
            "github.com/karpathy/makemore",
            "MIT",
            (
                (
                    Download(
                        "names/names.txt",
                        "https://raw.githubusercontent.com/karpathy/makemore/"
                        "988aa59e4d8fefa526d06f3b453ad116258398d4/names.txt",
                        "0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d",
                    ),
                ),
            ),
            separator="\n",
            mixed=True,
        ),
    )
}


def corpora() -> list[Corpus]:
    """The named corpora, the default first; nothing is read or fetched."""
    return list(CORPORA.values())


def find(name_or_path: str | Path, field: str = "text", separator: str | None = None) -> Source:
    """The corpus of that name, or the one at that path: a file, a folder, JSONL (whose text is in ``field``).

    A plain file is one document, or several between ``separator``s. A path with a folder in it, such as
    wikitext-2-raw/wiki.test.raw, is looked for here first and then under ``GLASSFORMER_DATA``.
    A named corpus goes before a file of the same name (write ./names for the file). Raises UserError when
    there is neither, and when a download fails or is not the expected file.
    """
    corpus = CORPORA.get(str(name_or_path))
    if corpus is None:
        path, home = Path(name_or_path).expanduser(), files.data_home()
        there = files.standing(path) is not None
        if not there and path.parent != Path() and home is not None and files.standing(home / path) is not None:
            path, there = home / path, True
        if not there and path.parent == Path():
            close = nearest(str(name_or_path), [*CORPORA, *(p.name for p in Path().iterdir())])
            hint = close if "mean" in close else f" Named corpora: {', '.join(CORPORA)}."
            raise UserError(f'There is no file, folder or named corpus "{name_or_path}".{hint}')
        return open_path(path, field, separator)
    if not corpus.downloads:
        parts: tuple[Part, ...] = (Part(_python_docs(), field="text"),)
    else:
        paths = [_mixed(corpus, path) if corpus.mixed else path for path in _fetched(corpus)]
        parts = tuple(Part(path, corpus.separator) for path in paths)
    return Source(corpus.name, parts[0].path, parts, (), corpus.origin, corpus.licence)


# ------------------------------------------------------------------------------------ downloads


def _fetched(corpus: Corpus) -> list[Path]:
    """The corpus's files, checked by hash: the user's data folder first, then the cache, then the network."""
    cached = files.cache_home() / "corpora"
    for home in filter(None, (files.data_home(), cached)):
        for group in corpus.downloads:
            paths = [home / file.place for file in group]
            if not all(path.is_file() for path in paths):
                continue
            wrong = [p for p, file in zip(paths, group, strict=True) if files.sha256(p) != file.sha256]
            if not wrong:
                return paths
            if home != cached:
                sentence = f"{wrong[0]} is not the file that {corpus.name} is made of (its SHA-256 differs); "
                raise UserError(sentence + "restore it, or give its path to use it as it is.")
    for file in corpus.downloads[-1]:
        files.write(cached / file.place, download(corpus.name, file))
    return [cached / file.place for file in corpus.downloads[-1]]


def download(name: str, file: Download) -> bytes:
    """A file from the network, checked by its hash; UserError where it cannot be had."""
    try:
        with urllib.request.urlopen(str(file.url), timeout=30) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        other = ", or use python-docs, which needs no network" if name in CORPORA else ""
        raise UserError(
            f"{name} cannot be downloaded ({reason}); set GLASSFORMER_DATA to a folder with {file.place} in it{other}."
        ) from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise UserError(f"The download of {name} is not the expected file ({file.url}); try again later.")
    return content


def _mixed(corpus: Corpus, path: Path) -> Path:
    """A small file of documents, each on its line, put in the order of their hashes."""
    mixed = files.cache_home() / "corpora" / corpus.name / f"mixed-{path.name}"
    lines = sorted(path.read_text(encoding="utf-8").split(), key=lambda line: hashlib.sha256(line.encode()).digest())
    text = "\n".join(lines) + "\n"
    if not mixed.is_file() or mixed.read_text(encoding="utf-8") != text:
        files.write(mixed, text)
    return mixed


# ---------------------------------------------------------------------------------- python-docs

_LEFT_OUT = {"test", "tests", "idlelib", "idle_test", "turtledemo", "lib2to3", "ensurepip"}
_LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__"}


def _python_docs() -> Path:
    """The corpus as a JSONL file in the cache, made when it is missing or damaged (a few seconds)."""
    home = Path(sysconfig.get_path("stdlib"))
    version = f"{platform.python_implementation()}-{platform.python_version()}-{hash_of(str(home))[:8]}"
    folder = files.cache_home() / "corpora" / "python-docs" / version
    path, seal = folder / "documents.jsonl", folder / "sha256"
    with in_turn(folder):
        if path.is_file() and seal.is_file() and seal.read_text().strip() == files.sha256(path):
            return path
        collecting = gc.isenabled()
        gc.disable()  # syntax trees hold no cycles; searching them for some would take as long as parsing
        try:
            found = {hash_of(text): json.dumps({"name": name, "text": text}) for name, text in reference_text(home)}
        finally:
            if collecting:
                gc.enable()
        if not found:
            raise UserError(f"{sys.executable} has no standard library sources in {home}; give a file of your own.")
        with files.write_folder(folder) as beside:
            # by hash: an order that is the same everywhere and makes the last tenth like the rest
            (beside / path.name).write_text("\n".join(found[key] for key in sorted(found)) + "\n", encoding="utf-8")
            (beside / seal.name).write_text(files.sha256(beside / path.name) + "\n")
    return path


def hash_of(text: str) -> str:
    """The text's SHA-256 as hexadecimal text."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def reference_text(home: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of each language topic and each documented thing below ``home``, read without importing any."""
    for path in sorted(home.rglob("*.py")):
        inside = path.relative_to(home)
        if _LEFT_OUT & set(inside.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):
            continue  # templates and samples of older syntax
        if inside.parts == ("pydoc_data", "topics.py"):
            yield from _topics(tree)
        else:
            yield from _docstrings(tree, ".".join(inside.with_suffix("").parts).removesuffix(".__init__"))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for key, page in ast.literal_eval(node.value).items():
                yield key, page.strip() + "\n"


def _docstrings(node: ast.AST, name: str, kind: str = "module") -> Iterator[tuple[str, str]]:
    """The docstrings of a module or class and of all it defines, each below a line with its full name."""
    if isinstance(node, ast.Module | ast.ClassDef) and (words := ast.get_docstring(node)):
        yield name, f"{kind} {name}\n\n{words}\n"
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef):
            yield from _docstrings(inner, f"{name}.{inner.name}", "class")
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            if words := ast.get_docstring(inner):
                full = f"{name}.{inner.name}"
                yield full, f"def {full}({ast.unparse(inner.args)})\n\n{words}\n"
        elif isinstance(inner, ast.If | ast.Try | ast.With):  # definitions that depend on the machine
            yield from _docstrings(inner, name)
