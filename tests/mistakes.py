"""What a user's mistake is answered with."""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest

from glassformer import UserError

# by table: a line that is wrong, and a part of what is answered to it
SENTENCES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@contextmanager
def mistake(match, *phrases):
    """What happens inside is refused in one sentence, in which the pattern and all parts are
    found."""
    with pytest.raises(UserError, match=match) as caught:
        yield caught
    message = str(caught.value)
    assert "\n" not in message
    assert all(phrase in message for phrase in phrases), message
