"""A tape of packed texts changes the columns of its own text, and fails alone."""

from __future__ import annotations

import torch

from glassformer.core.nn import Tape
from glassformer.fast.packed_tape import PackedTape

SPANS = (0, 3), (3, 5)  # columns of two texts in a row


def packed(*edits):
    """The tape of texts that are edited at ``edits`` by these functions, None for one that is not."""
    tapes = {
        text: (SPANS[text], Tape("*", edits=edit))
        for text, edit in enumerate(edits)
        if edit is not None
    }
    return PackedTape(tapes, {text: (text, text + 1) for text in tapes})


def test_an_edit_changes_the_columns_of_its_own_text():
    tape = packed(None, {"*": lambda path, x: x + 1})
    for path, shape, dim in (
        ("decoder.blocks.0.resid", (1, 5, 4), 1),
        ("decoder.blocks.0.attn.q", (1, 2, 5, 4), 2),  # heads come first
    ):
        x = torch.zeros(shape)
        result = tape.pass_through(path, x)
        assert not x.any()
        assert result.narrow(dim, 3, 2).eq(1).all()
        assert not result.narrow(dim, 0, 3).any()


def test_logits_are_the_rows_that_a_text_asked_for():
    tape = packed(None, {"logits": lambda path, x: x + 1})
    assert tape.pass_through("logits", torch.zeros(1, 2, 4))[0].sum(1).tolist() == [0, 4]


def test_a_text_that_is_recorded_alone_leaves_the_row_as_it_is():
    tape = packed({}, None)
    x = torch.arange(20.0).view(1, 5, 4)
    assert tape.pass_through("embed", x) is x
    assert tape.tapes[0][1].records["embed"].equal(x[:, :3])


def test_an_edit_that_fails_is_the_error_of_its_text():
    def wrong(path, x):
        raise ValueError(path)

    tape = packed({"embed": wrong}, {"embed": lambda path, x: x + 1})
    result = tape.pass_through("embed", torch.zeros(1, 5, 1))
    assert result.flatten().tolist() == [0, 0, 0, 1, 1]
    assert tape.errors.keys() == {0}
