"""``glassformer data``: a corpus: what it holds and where it lies."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import note
from .common import count_noun, file_or_input, print_json, print_pairs, unescape

EXAMPLES = ("glassformer data", "glassformer data python-docs")


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="a named corpus, a file, a folder, or - for standard input; none lists the names",
    )
    add("--field", default="text", metavar="NAME", help="the text field of JSONL (text)")
    add(
        "--separator",
        type=unescape,
        metavar="TEXT",
        help="what parts a plain file's documents (nothing)",
    )
    add("--json", action="store_true", help="as JSON")


def example_sets() -> list[dict[str, Any]]:
    """The sets of published files that are known by name, and what run files want that a person has
    to bring."""
    from .. import files
    from ..config import run_file
    from ..data import registry

    sets: list[dict[str, Any]] = []
    for example_set in registry.example_sets():
        names = [file.place.partition("/")[2] for file in example_set.files]
        sets.append(
            {
                "name": example_set.name,
                "files": names,
                "origin": example_set.origin,
                "licence": example_set.licence,
            }
        )
    seen_names = {*registry.example_files(), *(corpus.name for corpus in registry.corpora())}
    missing: dict[str, list[str]] = {}
    for path in run_file.run_files().values():
        table = files.read_toml(path).get("data", {})
        for value in (table.get("train"), table.get("valid")):
            places = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, list)
                else [value]
            )
            for place in (
                place for place in places if isinstance(place, str) and place not in seen_names
            ):
                folder, _, file = place.partition("/")
                seen_names.add(place)
                if folder != "out":  # what another run file made
                    missing.setdefault(folder, []).append(file)
    yours = {
        "origin": "bring it: GLASSFORMER_DATA names the folder it lies in",
        "licence": "its own",
    }
    return sets + [{"name": name, "files": files, **yours} for name, files in missing.items()]


def run(args: argparse.Namespace) -> None:
    from ..data import find as find_corpus
    from ..data import registry

    if args.name is None:
        corpora = registry.corpora()
        if args.json:
            named = [
                {"name": c.name, "what": c.description, "origin": c.origin, "licence": c.licence}
                for c in corpora
            ]
            print_json([*named, *example_sets()])
        else:
            texts = [(c.name, f"{c.description} ({c.licence}, {c.origin})") for c in corpora]
            sets = [
                (f"{s['name']}/", f"{', '.join(s['files'])} ({s['licence']}, {s['origin']})")
                for s in example_sets()
            ]
            print_pairs(*texts, *sets)
        return
    source = find_corpus(file_or_input(args.name), args.field, args.separator)
    for line in source.notes:
        note(line)
    summary = source.summary()
    if args.json:
        print_json(
            {name: str(v) if isinstance(v, Path) else v for name, v in vars(summary).items()}
        )
    else:
        pieces = f"{count_noun(summary.documents, 'document')}, {count_noun(summary.files, 'file')}"
        size = f"{summary.bytes:,} bytes of text in {pieces}"
        origin = (
            ("lies at", str(summary.path)),
            ("from", summary.origin),
            ("licence", summary.licence),
        )
        print_pairs(("corpus", summary.name), ("holds", size), *origin)
