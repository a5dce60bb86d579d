"""docs/run-file.md says what the dataclasses say. ``python tests/config/test_run_file_page.py`` renews it."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields as fields_of
from pathlib import Path
from typing import get_type_hints

from glassformer.config import run, settings

PAGE = Path(__file__).parents[2] / "docs" / "run-file.md"
INTRODUCTION = """# The run file

Every setting that `glassformer train RUN.toml` knows. This page is made from the dataclasses of `config/` by
`python tests/config/test_run_file_page.py`; edit those. `glassformer train --settings` prints the same in a terminal.

```toml
[model]                       # what to train: a recipe (or from = a trained model), and changes to its config
recipe = "glass/1m"
context = 128
decoder.depth = 6

[data]                        # what to train on; type = "Examples" for pairs, labels and tags (data-formats.md)
train = "notes.txt"
tokenizer = "bpe"
vocab = 2048

[train]                       # how; what is left out has the default below
steps = 1200
objective = { type = "Masked", rate = 0.2 }
schedule = "Cosine"
```

- A slot that takes one of several types is named by the type alone (`schedule = "Cosine"`), or by a table with `type`
  and that type's own settings. Unknown names are refused, with the nearest known one.
- On the command line the same settings are `--NAME VALUE`: those of [train] and [model] by their path (`--steps 500`,
  `--decoder.depth 8`), those of [data] behind `data.` (`--data.vocab 4096`). They come after the file's.
- `none` is written `"none"` in TOML. A list's first block is `decoder.pattern.0`; a path without the number, such as
  `decoder.pattern.attention.heads`, changes every block.
- Each type is described once, under its own name, where it is first used.
"""
TABLES = {
    run.Train: ("[train]", "How to train"),
    run.Data: ("[data]", "What to train on"),
    run.Run: ("[model]", "What to train: any field of the config by its path"),
}


def page() -> str:
    """The page as it should be."""
    parts = [INTRODUCTION]
    owners: dict[type, list[settings.Setting]] = {}
    for setting in settings.every(once=True):
        owners.setdefault(setting.owner, []).append(setting)
    for owner, fields in owners.items():
        if owner in TABLES:
            parts.append("\n## {}\n\n{}.\n".format(*TABLES[owner]))
        parts.append(f"\n### {owner.__name__}\n\n{_plain(inspect.getdoc(owner) or '')}\n")
        parts.append("\n| setting | type | default | meaning |\n|---|---|---|---|\n")
        for one in fields:
            cells = (f"`{one.path}`", one.kind, one.default and f"`{one.default}`", one.meaning)
            parts.append(f"| {' | '.join(_cell(cell) for cell in cells)} |\n")
        bare = [
            kind for hint in get_type_hints(owner).values() for kind in settings._classes(hint) if not fields_of(kind)
        ]
        if bare:
            parts.append("\nWithout settings of their own:\n\n")
            parts += [f"- `{kind.__name__}`: {_plain(inspect.getdoc(kind) or '')}\n" for kind in dict.fromkeys(bare)]
    return "".join(parts)


def _plain(text: str) -> str:
    """A docstring as Markdown: its paragraphs, each in one line."""
    return "\n\n".join(" ".join(part.split()) for part in text.replace("``", "`").split("\n\n"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def test_the_page_is_what_the_dataclasses_say() -> None:
    renew = f"docs/run-file.md is stale: run `python {Path(__file__).relative_to(PAGE.parents[1])}`"
    assert PAGE.read_text(encoding="utf-8") == page(), renew


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE}: {PAGE.write_text(page(), encoding='utf-8'):,} characters\n")
