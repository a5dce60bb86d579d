"""``glassformer data``: a corpus: what it holds and where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from .common import CommandOutput, count_noun, text_table
from .options import Separator
from .sources import file_or_input, find_corpus

EXAMPLES = ("glassformer data", "glassformer data python-docs")


def example_sets() -> list[dict[str, Any]]:
    """The sets of published files that are known by name, and what run files want that a person has
    to bring."""
    from ..core import files
    from ..formats.data import catalog
    from ..runs import run_file

    sets: list[dict[str, Any]] = []
    for example_set in catalog.example_sets():
        names = [file.place.partition("/")[2] for file in example_set.files]
        sets.append(
            {
                "name": example_set.name,
                "files": names,
                "origin": example_set.origin,
                "licence": example_set.licence,
            }
        )
    seen_names = {*catalog.example_files(), *(corpus.name for corpus in catalog.corpora())}
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


def run(
    name: Annotated[str, file_or_input] | None = None,
    *,
    field: str = "text",
    separator: Separator | None = None,
) -> CommandOutput:
    """Describes a corpus, or lists those that are known by name.

    name NAME: a named corpus, a file, a folder, or - for standard input; none lists the names
    """
    from ..formats.data import catalog

    if name is None:
        corpora, sets = catalog.corpora(), example_sets()
        records = [
            {"name": c.name, "what": c.description, "origin": c.origin, "licence": c.licence}
            for c in corpora
        ]
        rows = [(c.name, f"{c.description} ({c.licence}, {c.origin})") for c in corpora]
        rows += [
            (f"{s['name']}/", f"{', '.join(s['files'])} ({s['licence']}, {s['origin']})")
            for s in sets
        ]
        return CommandOutput([*records, *sets], text_table.lines(rows, left_columns=(0, 1)))
    summary = find_corpus(name, field, separator).summary()
    record = {key: str(v) if isinstance(v, Path) else v for key, v in vars(summary).items()}
    pieces = f"{count_noun(summary.documents, 'document')}, {count_noun(summary.files, 'file')}"
    rows = [
        ("corpus", summary.name),
        ("holds", f"{summary.bytes:,} bytes of text in {pieces}"),
        ("lies at", str(summary.path)),
        ("from", summary.origin),
        ("licence", summary.licence),
    ]
    return CommandOutput(record, text_table.lines(rows, left_columns=(0, 1)))
