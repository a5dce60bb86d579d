"""The sides of values by their paths, held to the shapes that a model computes."""

from __future__ import annotations

import pytest

import tiny
from glassformer.sight import look
from glassformer.sight.axes import across, along_source, headed, of_source

TOKENS, SOURCE = 7, 5


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_sides_by_path_are_those_of_the_values(name):
    model = tiny.model(name)
    pair = model.config.has_source
    source = tiny.tokens(1, SOURCE) if pair else None
    values = look(model, None, tiny.tokens(1, TOKENS), source=source)
    lengths = {False: TOKENS, True: SOURCE}
    compared = set()
    for path, value in values.items():
        if value.ndim < 3 or path.startswith("pool."):
            continue
        is_source = of_source(model, path)
        axis = 2 if headed(path, value.ndim) else 1
        assert value.shape[axis] == lengths[is_source], path
        if path.endswith((".pattern", ".scores")):
            sides = [lengths[pair and along_source(path, side)] for side in "TS"]
            assert list(value.shape[2:]) == sides, path
        assert not across(path) or ".cross." in path
        compared.add(is_source)
    assert compared == ({False, True} if pair else {False})
