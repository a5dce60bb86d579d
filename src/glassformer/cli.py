"""The command line: results on standard output, notes and progress on standard error, mistakes in
one sentence."""

from __future__ import annotations

import importlib
import io
import os
import sys

from . import __version__
from .commands import GROUPS, VERBS
from .core.errors import UserError, note
from .fast.torch_import import TorchFinder

# Nothing else is imported up here: `glassformer --help` answers without torch, argparse, pathlib
# and typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .commands.parsing import Parser

DESCRIPTION = "Train, run and inspect the whole Transformer family."
EPILOG = "glassformer help COMMAND shows a command's options, with examples."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 for Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, TorchFinder())
    # torch reads it as it is imported: a process that is lost is our sentence, no frames of C++
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if sys.stderr is None:  # closed before we began: else the next file opened would get its number
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal that cannot show a character shows another
            stream.reconfigure(errors="replace")
    try:
        code = _run(words)
        if sys.stdout is not None:  # None where it was closed before we began
            sys.stdout.flush()
        return code
    except UserError as error:
        note(f"glassformer: {error}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if (
            not isinstance(error, MemoryError)
            and "allocate memory" not in str(error)
            and "out of memory" not in str(error)
        ):
            raise
        note(
            "glassformer: There is not enough memory for this; take a smaller model, batch or "
            "context."
        )
        return 2
    except BrokenPipeError:  # the reader has seen enough, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        from pathlib import Path

        from .core.files import explain

        note(f"glassformer: {explain(error, Path(error.filename or 'the output'))}")
        return 2
    except KeyboardInterrupt as stopped:  # what it says is how to go on
        note(f"\nglassformer: stopped.{stopped}")
        return 130


def _run(words: list[str]) -> int:
    if words[:1] in ([], ["-h"], ["--help"]) or words == ["help"]:
        print(overview(), end="")
        return 0
    if words[:2] == ["help", "inspect"]:
        words = words[1:]
    if words[0] == "inspect":
        inspecting = {"inspect": GROUPS["inspect"]}
        if words[1:2] in ([], ["-h"], ["--help"]):
            print(overview(inspecting), end="")
            return 0
        if words[1] not in GROUPS["inspect"]:
            raise UserError(f"There is no inspect {words[1]}; see glassformer inspect --help.")
        words = words[1:]
    if words[0] in ("--version", "version"):
        print(f"glassformer {__version__}")
        return 0
    from .commands.parsing import check_text

    check_text(words)
    if words[0] == "help":
        words = [*words[1:], "--help"]
    from .commands.parsing import execute

    return execute(parser(words[:1]), words)


def overview(groups: Mapping[str, Mapping[str, str]] = GROUPS) -> str:
    """The text of ``glassformer --help`` for these groups of verbs, as wide as the terminal; without
    argparse, which takes most of its time."""
    try:
        width = os.get_terminal_size().columns
    except OSError:  # no terminal
        width = 80
    indent = max(map(len, VERBS)) + 4
    lines = ["usage: glassformer COMMAND ...", "", DESCRIPTION]
    for title, verbs in groups.items():
        lines += ["", f"{title}:"]
        for verb, sentence in verbs.items():
            line = f"  {verb}".ljust(indent)
            for word in sentence.split():
                if len(line) > indent and len(line) + len(word) > width:
                    lines.append(line.rstrip())
                    line = " " * indent
                line += word + " "
            lines.append(line.rstrip())
    return "\n".join([*lines, "", EPILOG, "glassformer --version shows the version.", ""])


def parser(verbs: Collection[str]) -> Parser:
    """The parser of these verbs; where there is none of them, every verb without what it takes."""
    from .commands.options import SHARED
    from .commands.parsing import Parser, add_arguments, read_docstring

    top = Parser(prog="glassformer", description=DESCRIPTION, epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"glassformer {__version__}")
    for verb in [verb for verb in VERBS if verb in verbs] or VERBS:
        verb_parser = top.add_verb(verb, VERBS[verb])
        if verb in verbs:
            page = importlib.import_module(f".commands.{verb}", __package__)
            verb_parser.usage, verb_parser.epilog = (
                getattr(page, "USAGE", None),
                getattr(page, "EPILOG", None),
            )
            for task, function in getattr(page, "TASKS", {}).items():
                task_parser = verb_parser.add_verb(task, read_docstring(function.__doc__)[0])
                add_arguments(task_parser, function, SHARED)
            if hasattr(page, "run"):
                add_arguments(verb_parser, page.run, SHARED)
            verb_parser.add_examples(page.EXAMPLES)
    return top
