"""The command line as it is typed, in the process of the test."""

from __future__ import annotations

import io
import json
import shlex
import sys

import pytest

from glassformer.cli import main


class Terminal:
    """Runs lines of words, quoted as in a shell; more words may follow as they are."""

    def __init__(self, capture):
        self.capture = capture  # capsys, or what stands in for it
        self.notes = ""  # the last command's standard error

    def __call__(self, line, *words, code=0, stdin=b""):
        """Standard output of a command that ends with ``code``."""
        self.capture.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            status = main([*shlex.split(line), *map(str, words)]) or 0
        sys.stdout.flush()
        output, self.notes = self.capture.readouterr()
        assert status == code, self.notes
        return output

    def json(self, line, *words, **options):
        return json.loads(self(line, *words, "--json", **options))

    def refused(self, line, *words):
        """The sentence that a user's mistake is answered with."""
        self(line, *words, code=2)
        return self.notes
