"""What a user's mistake is answered with."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from glassformer import UserError


@contextmanager
def mistake(match):
    """What happens inside is refused in one sentence, in which the pattern is found."""
    with pytest.raises(UserError, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)
