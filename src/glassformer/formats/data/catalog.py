"""Published texts and examples by name (``published.toml``): found on the disk or downloaded once,
checked by hash.

``GLASSFORMER_DATA`` names a folder that already holds the downloads (tinyshakespeare/input.txt and
so on).
"""

from __future__ import annotations

import hashlib
import http.client
import tomllib
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ...core import files
from ...core.errors import UserError, nearest
from . import python_docs
from .corpus import CorpusFile, Source, cache_home, data_home, open_path


@dataclass(frozen=True)
class Download:
    """A published file: where it lies under ``GLASSFORMER_DATA``, where it is fetched from, its
    SHA-256."""

    place: str
    url: str | None
    sha256: str


@dataclass(frozen=True)
class Published:
    """A corpus, or a set of ``examples``, and its files; ``instead`` are others that a data folder
    may hold.

    ``mixed`` puts documents in the order of their hashes, so that the last tenth is like the rest.
    """

    name: str
    origin: str
    licence: str
    files: tuple[Download, ...] = ()
    instead: tuple[Download, ...] = ()
    description: str = ""
    separator: str | None = None
    mixed: bool = False
    examples: bool = False


def _published() -> dict[str, Published]:
    """The table in published.toml."""
    table = tomllib.loads(Path(__file__).with_name("published.toml").read_text(encoding="utf-8"))
    published = {}
    for name, raw in table.items():
        folder = raw.pop("folder", name)
        url = raw.pop("url", "")
        listed = raw.pop("files", {}).items()
        fetched = tuple(
            Download(f"{folder}/{file}", url + path, sha256) for file, (path, sha256) in listed
        )
        alternatives = raw.pop("instead", {}).items()
        instead = tuple(Download(f"{folder}/{file}", None, sha256) for file, sha256 in alternatives)
        published[name] = Published(name, files=fetched, instead=instead, **raw)
    return published


PUBLISHED = _published()


def corpora() -> list[Published]:
    """The named corpora, the default first; nothing is read or fetched."""
    return [corpus for corpus in PUBLISHED.values() if not corpus.examples]


def example_sets() -> list[Published]:
    """The named sets of examples."""
    return [corpus for corpus in PUBLISHED.values() if corpus.examples]


def example_files() -> list[str]:
    """Every file of examples by its name, such as ``scan/tasks_train_simple.txt``."""
    return [file.place for corpus in example_sets() for file in corpus.files]


def find(name_or_path: str | Path, field: str = "text", separator: str | None = None) -> Source:
    """The corpus of that name, or the one at that path: a file, a folder, JSONL (whose text is in
    ``field``).

    A plain file is one document, or several between ``separator``s. A path with a folder in it,
    such as wikitext-2-raw/wiki.test.raw, is looked for here first and then under
    ``GLASSFORMER_DATA``. A named corpus goes before a file of the same name (write ./names for the
    file). Raises UserError when there is neither, and when a download fails or is not the expected
    file.
    """
    corpus = PUBLISHED.get(str(name_or_path))
    if corpus is None or corpus.examples:
        path = _here_or_home(Path(name_or_path).expanduser())
        # a path without a name would be the folder where the command runs
        if name_or_path == "" or (path.parent == Path() and files.path_kind(path) is None):
            names = [corpus.name for corpus in corpora()]
            close = nearest(str(name_or_path), [*names, *(p.name for p in Path().iterdir())])
            hint = close if "mean" in close else f" Named corpora: {', '.join(names)}."
            raise UserError(f'There is no file, folder or named corpus "{name_or_path}".{hint}')
        return open_path(path, field, separator)
    if not corpus.files:
        corpus_files: tuple[CorpusFile, ...] = (CorpusFile(python_docs.documents(), field="text"),)
    else:
        paths = [
            _mixed(corpus, path) if corpus.mixed else path for path in _placed(corpus, corpus.files)
        ]
        corpus_files = tuple(CorpusFile(path, corpus.separator) for path in paths)
    return Source(
        corpus.name, corpus_files[0].path, corpus_files, (), corpus.origin, corpus.licence
    )


def _here_or_home(path: Path) -> Path:
    """The path, or where it is only there and names a folder, the same one under
    ``GLASSFORMER_DATA``."""
    home = data_home()
    away = home is not None and path.parent != Path() and files.path_kind(path) is None
    if away and home and files.path_kind(home / path) is not None:
        return home / path
    return path


def locate(name_or_path: str) -> Path:
    """The file at a path, here or under GLASSFORMER_DATA, or the published file of examples of that
    name: from GLASSFORMER_DATA, cache or network.

    Raises UserError where there is neither, and for a published file whose content is another.
    """
    path = Path(name_or_path).expanduser()
    published = PUBLISHED.get(name_or_path.partition("/")[0])
    if path.exists() or published is None or not published.examples:
        return _here_or_home(path)
    file = next((file for file in published.files if file.place == name_or_path), None)
    if file is None:
        raise UserError(f"There is no file {name_or_path}.{nearest(name_or_path, example_files())}")
    return _placed(published, (file,))[0]


# ------------------------------------------------------------------------------------ downloads


def _placed(published: Published, downloads: tuple[Download, ...]) -> list[Path]:
    """The files, checked by hash: from the user's data folder first, then the cache, then the
    network."""
    cached = cache_home() / ("examples" if published.examples else "corpora")
    for home in filter(None, (data_home(), cached)):
        for group in filter(None, (published.instead, downloads)):
            paths = [home / file.place for file in group]
            if not all(path.is_file() for path in paths):
                continue
            wrong = [
                p for p, file in zip(paths, group, strict=True) if files.sha256(p) != file.sha256
            ]
            if not wrong:
                return paths
            if home != cached:
                sentence = f"{wrong[0]} is not the published file of {published.name} (its SHA-256 differs); "
                raise UserError(
                    sentence + "restore it, or give its path from here to use it as it is."
                )
    for file in downloads:
        files.write(cached / file.place, _download(published, file))
    return [cached / file.place for file in downloads]


def _download(published: Published, file: Download) -> bytes:
    """A file from the network, checked by its hash; UserError where it cannot be had."""
    name = file.place if published.examples else published.name
    try:
        with urllib.request.urlopen(str(file.url), timeout=30) as answer:
            content: bytes = answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        alternative = "" if published.examples else ", or use python-docs, which needs no network"
        raise UserError(
            f"{name} cannot be downloaded ({reason}); set GLASSFORMER_DATA to a folder with "
            f"{file.place} in it{alternative}."
        ) from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise UserError(
            f"The download of {name} is not the expected file ({file.url}); try again later."
        )
    return content


def _mixed(corpus: Published, path: Path) -> Path:
    """A small file of documents, each on its line, put in the order of their hashes."""
    mixed = cache_home() / "corpora" / corpus.name / f"mixed-{path.name}"
    lines = sorted(
        path.read_text(encoding="utf-8").split(),
        key=lambda line: hashlib.sha256(line.encode()).digest(),
    )
    text = "\n".join(lines) + "\n"
    if not mixed.is_file() or mixed.read_text(encoding="utf-8") != text:
        files.write(mixed, text)
    return mixed
