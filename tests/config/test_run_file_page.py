"""docs/run-file.md says what the dataclasses say. ``python tests/config/test_run_file_page.py``
renews it."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from glassformer.runs import run_file, settings

PAGE = Path(__file__).parents[2] / "docs" / "run-file.md"
INTRODUCTION = """# The run file

Every setting that `glassformer train RUN.toml` knows. This page is made from the dataclasses of `core/config/` by
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
objective = { type = "Masked", mask_rate = 0.2 }
schedule = "Cosine"
```

- A slot that takes one of several types is named by the type alone (`schedule = "Cosine"`), or by a table with `type`
  and that type's own settings. Unknown names are refused, with the nearest known one.
- On the command line the same settings are `--NAME VALUE`: those of [train] and [model] by their path (`--steps 500`,
  `--decoder.depth 8`), those of [data] behind `data.` (`--data.vocab 4096`). They come after the file's.
- `none` is written `"none"` in TOML. A list's first block is `decoder.pattern.0`; a path without the number, such as
  `decoder.pattern.attention.heads`, changes every block.
- Each type is described once, under its own name, with the path where it is first used; where two types have one name,
  the slot stands before it (`mask Prefix`, `objective Prefix`).
- An optimizer that is named by its type has the defaults below; where none is named, [model] decides which it is and at
  what rate (`optimizer`).
"""
TABLES = {
    "Train": ("[train]", "How to train"),
    "Data": ("[data]", "What to train on"),
    "Run": ("[model]", "What to train: any field of the config by its path"),
    "Parallel": ("[parallel]", "How several processes share the training (torchrun; scale.md)"),
}


def page():
    """The page as it should be."""
    pieces = [INTRODUCTION]
    for name, item in settings.types().items():
        if name in TABLES:
            pieces.append("\n## {}\n\n{}.\n".format(*TABLES[name]))
        pieces.append(f"\n### {name}\n\n{_plain(inspect.getdoc(item.kind) or '')}\n")
        if item.settings:
            pieces.append("\n| setting | type | default | meaning |\n|---|---|---|---|\n")
        for setting in item.settings:
            cells = (
                f"`{setting.path}`",
                setting.kind,
                setting.default and f"`{setting.default}`",
                setting.meaning,
            )
            pieces.append(f"| {' | '.join(_cell(cell) for cell in cells)} |\n")
    return "".join(pieces)


def _plain(text):
    """A docstring as Markdown: its paragraphs, each in one line."""
    return "\n\n".join(" ".join(piece.split()) for piece in text.replace("``", "`").split("\n\n"))


def _cell(text):
    return text.replace("|", "\\|")


def test_the_page_is_what_the_dataclasses_say():
    renew = f"docs/run-file.md is stale: run `python {Path(__file__).relative_to(PAGE.parents[1])}`"
    assert PAGE.read_text(encoding="utf-8") == page(), renew


def test_each_setting_means_something_of_its_own():
    for name, item in settings.types().items():
        meanings = [setting.meaning for setting in item.settings]
        assert all(meanings), f"{name}: a field has no comment behind it"
        assert len({*meanings}) == len(meanings), f"{name}: two fields mean the same"


def test_each_type_is_told_once_and_by_a_name_of_its_own():
    kinds = [item.kind for item in settings.types().values()]
    assert len({*kinds}) == len(kinds)
    names = {name for name in settings.types() if name.split()[-1] in ("Prefix", "Causal", "Full")}
    expected = {
        "mask Prefix",
        "objective Prefix",
        "mask Causal",
        "objective Causal",
        "mask Full",
        "tune Full",
    }
    assert names == expected
    every = {setting.path for setting in settings.all_settings()}
    assert {
        setting.path for item in settings.types().values() for setting in item.settings
    } <= every


def test_the_default_optimizer_is_the_one_that_a_run_gets():
    output = next(
        setting.meaning
        for setting in settings.types()["Train"].settings
        if setting.path == "optimizer"
    )
    # read, never typed
    assert not re.search(r"\d", settings.meaning(settings.types()["Train"].kind)["optimizer"])
    for model, name in (
        ({"recipe": "glass/1m"}, "a glass recipe"),
        ({"from": "gpt2"}, "from a checkpoint"),
        ({"recipe": "gpt2"}, "anything else"),
    ):
        in_use = run_file.default_optimizer(model)
        remaining = f", rest at {in_use.rest.lr:g}" if hasattr(in_use, "rest") else ""
        assert f"{name}: {type(in_use).__name__} at {in_use.lr:g}{remaining}" in output


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE}: {PAGE.write_text(page(), encoding='utf-8'):,} characters\n")
