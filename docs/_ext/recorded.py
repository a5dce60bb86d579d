"""Commands with what they gave: run once by hand on a real machine, kept beside the pages, told
with date and seconds.

    ```{recorded}            each line is a command of bash; what it printed when it was recorded stands below
    glassformer generate plays "O Romeo" --max-new 40
    ```
    % prepare: COMMAND       a comment of the page: run before, not shown (data is put in place)

`python docs/_ext/recorded.py use/train ...` runs the pages' commands in order, each page in a
folder of its own, and writes ``docs/use/recorded.json``; a page whose command is not in it, letter
by letter, does not build.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
KEPT = DOCS / "use" / "recorded.json"
MOST = 40  # lines of an output that are shown
STEP = re.compile(
    r"^```\{recorded\}\n(?P<shown>.*?)\n```|^% prepare: (?P<before>[^\n]*)", re.S | re.M
)


def commands(page: str) -> list[tuple[str, bool]]:
    """The commands of a page in order, and whether each is shown."""
    text, found = (DOCS / f"{page}.md").read_text(encoding="utf-8"), list[tuple[str, bool]]()
    for step in STEP.finditer(text):
        found += (
            [(step["before"], False)]
            if step["before"]
            else [(one, True) for one in lines(step["shown"])]
        )
    return found


def lines(block: str) -> list[str]:
    """The commands of a block; a line that ends in a backslash goes on in the next."""
    return re.sub(r" *\\\n *", " ", block.strip()).split("\n")


def record(page: str) -> list[dict[str, Any]]:
    """Run a page's commands; the first that fails ends it with what it said."""
    made = []
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    env |= {"DATA": str(DOCS.parents[1] / "shared" / "data"), "REPOSITORY": str(DOCS.parent)}
    with tempfile.TemporaryDirectory() as folder:
        for command, told in commands(page):
            began = time.perf_counter()
            given: dict[str, Any] = {
                "cwd": folder,
                "env": env,
                "stdin": subprocess.DEVNULL,
                "text": True,
            }
            with tempfile.TemporaryFile("w+") as out:
                done = subprocess.run(
                    ["bash", "-c", command], stdout=out, stderr=subprocess.STDOUT, **given
                )
                out.seek(0)
                said = clean(out.read(), folder)
            seconds = time.perf_counter() - began
            print(f"{page}: {seconds:6.1f} s  {command}", flush=True)
            if done.returncode:
                sys.exit(f"{page}: {command}\n{said}")
            if told:
                made.append({"command": command, "output": said, "seconds": round(seconds, 1)})
    return made


def clean(said: str, folder: str) -> str:
    """What a reader of a terminal sees in the end: no overwritten lines, no colours, no folder of
    ours."""
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    kept = [
        line.split("\r")[-1].rstrip()
        for line in said.replace("\r\n", "\n").replace(f"{folder}/", "").split("\n")
    ]
    while kept and not kept[-1]:
        kept.pop()
    if len(kept) > MOST:
        left = len(kept) - MOST + 10
        kept = [*kept[: MOST - 20], f"[{left} lines]", *kept[-10:]]
    return "\n".join(kept)


def main(pages: list[str]) -> None:
    """Record these pages, or all that have commands."""
    import glassformer

    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    every = [f"use/{path.stem}" for path in sorted((DOCS / "use").glob("*.md"))]
    for page in pages or every:
        made = record(page)
        when = {"date": str(datetime.date.today()), "version": glassformer.__version__}
        kept[page] = when | {"steps": made}
        KEPT.write_text(
            json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
        )


def setup(app: Any) -> dict[str, Any]:
    """Sphinx asks for this."""
    from docutils import nodes
    from sphinx.errors import ExtensionError
    from sphinx.util.docutils import SphinxDirective

    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}

    class Recorded(SphinxDirective):
        """Commands, and below each what it gave."""

        has_content = True

        def run(self) -> list[nodes.Node]:
            page = kept.get(self.env.docname, {"steps": []})
            found = {step["command"]: step for step in page["steps"]}
            made: list[nodes.Node] = []
            for command in lines("\n".join(self.content)):
                if command not in found:
                    again = f"python docs/_ext/recorded.py {self.env.docname}"
                    raise ExtensionError(
                        f"{self.env.docname}: not recorded: {command}\nRecord it: {again}"
                    )
                made.append(nodes.literal_block(command, command, language="bash"))
                said = found[command]["output"]
                if said:
                    made.append(
                        nodes.literal_block(said, said, language="text", classes=["result"])
                    )
            took = sum(found[one]["seconds"] for one in lines("\n".join(self.content)))
            told = (
                f"Recorded {page['date']} with Glassformer {page['version']}, on 2 busy "
                f"cores: {took:.0f} s."
            )
            return [*made, nodes.paragraph("", told, classes=["recorded"])]

    app.add_directive("recorded", Recorded)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    main(sys.argv[1:])
