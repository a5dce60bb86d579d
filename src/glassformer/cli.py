"""The command line: results on standard output, notes and progress on standard error, mistakes in one sentence."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .commands import VERBS
from .errors import UserError, nearest
from .files import explain
from .parsing import Parser

# Nothing else is imported up here: `glassformer --help` answers without torch.


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows another
    try:
        given, rest = parser().parse_known_args(arguments)
        if rest and given.command != "train":
            hint = nearest(rest[0], [o for o in given.options if o.startswith("--")]) if rest[0].startswith("-") else ""
            raise UserError(f"{rest[0]} is not understood.{hint} See glassformer {given.command} --help.")
        given.rest = rest
        code: int = given.run(given) or 0
        if sys.stdout is not None:  # None where it was closed before we began
            sys.stdout.flush()
        return code
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"glassformer: {explain(error, Path(error.filename or 'the output'))}", file=sys.stderr)
            return 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough, as with `| head`
        return 0
    except KeyboardInterrupt:
        print("\nglassformer: stopped.", file=sys.stderr)
        return 130


def parser() -> Parser:
    """Every command and its options."""
    top = Parser(
        prog="glassformer",
        description="The whole Transformer family, trained, run and looked into.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"glassformer {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for verb in VERBS:
        page = importlib.import_module(f".commands.{verb}", __package__)
        made = commands.add_parser(
            verb,
            help=page.HELP,
            description=page.HELP,
            epilog=getattr(page, "EPILOG", None),
            usage=getattr(page, "USAGE", None),
            allow_abbrev=False,
        )
        page.options(made)
        made.set_defaults(run=page.run, options=made._option_string_actions)
    return top
