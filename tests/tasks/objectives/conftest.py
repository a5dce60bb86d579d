"""Tokenizers of letters with the special tokens that masking and spans need."""

from __future__ import annotations

import pytest

from glassformer.core.tokenizer import train as train_tokenizer
from packed import FRAME, LETTERS, MARKS


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer("char", [LETTERS], specials=FRAME)


@pytest.fixture(scope="module")
def marked():
    return train_tokenizer("char", [LETTERS], specials=MARKS)
