"""``glassformer data``: a corpus: what it holds and where it lies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import note
from .common import counted, emit, file_or_input, rows, unescaped

EXAMPLES = ("glassformer data", "glassformer data python-docs")


def options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="a named corpus, a file, a folder, or - for standard input; none lists the names",
    )
    add("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    add(
        "--separator",
        type=unescaped,
        metavar="TEXT",
        help="what parts a plain file's documents (nothing)",
    )
    add("--json", action="store_true", help="as JSON")


def examples() -> list[dict[str, Any]]:
    """The sets of published files that are known by name, and what run files want that a person has
    to bring."""
    from .. import files
    from ..config import run_file
    from ..data import registry

    found: list[dict[str, Any]] = []
    for one in registry.example_sets():
        names = [file.place.partition("/")[2] for file in one.files]
        found.append(
            {"name": one.name, "files": names, "origin": one.origin, "licence": one.licence}
        )
    known = {*registry.example_files(), *(corpus.name for corpus in registry.corpora())}
    wanted: dict[str, list[str]] = {}
    for path in run_file.run_files().values():
        table = files.read_toml(path).get("data", {})
        for value in (table.get("train"), table.get("valid")):
            asked = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else [value]
            )
            for place in (one for one in asked if isinstance(one, str) and one not in known):
                folder, _, file = place.partition("/")
                known.add(place)
                if folder != "out":  # what another run file made
                    wanted.setdefault(folder, []).append(file)
    yours = {
        "origin": "bring it: GLASSFORMER_DATA names the folder it lies in",
        "licence": "its own",
    }
    return found + [{"name": name, "files": files, **yours} for name, files in wanted.items()]


def run(given: argparse.Namespace) -> None:
    from ..data import find as find_corpus
    from ..data import registry

    if given.name is None:
        corpora = registry.corpora()
        if given.json:
            said = [
                {"name": c.name, "what": c.what, "origin": c.origin, "licence": c.licence}
                for c in corpora
            ]
            emit([*said, *examples()])
        else:
            texts = [(c.name, f"{c.what} ({c.licence}, {c.origin})") for c in corpora]
            sets = [
                (f"{s['name']}/", f"{', '.join(s['files'])} ({s['licence']}, {s['origin']})")
                for s in examples()
            ]
            rows(*texts, *sets)
        return
    source = find_corpus(file_or_input(given.name), given.field, given.separator)
    for line in source.notes:
        note(line)
    found = source.summary()
    if given.json:
        emit({name: str(v) if isinstance(v, Path) else v for name, v in vars(found).items()})
    else:
        pieces = f"{counted(found.documents, 'document')}, {counted(found.files, 'file')}"
        counts = f"{found.bytes:,} bytes of text in {pieces}"
        where = (("lies at", str(found.path)), ("from", found.origin), ("licence", found.licence))
        rows(("corpus", found.name), ("holds", counts), *where)
