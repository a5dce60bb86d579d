"""What the list of families says, and the list of model types."""

from __future__ import annotations

import re
from dataclasses import replace

from glassformer import families


def test_every_model_type_that_opens_is_listed_with_a_checkpoint(terminal, monkeypatch):
    rows = {row["model_type"]: row for row in terminal.json("recipes --types")}
    published = [recipe for recipe in families.all() if recipe.read_config is not None]
    assert list(rows) == [recipe.model_type for recipe in published]
    for recipe in published:
        row = rows[recipe.model_type]
        assert row["architectures"] == list(recipe.architectures)
        assert re.fullmatch(r"[\w-]+/[\w.-]+", row["checkpoint"]), row
    assert "T5EncoderModel" in terminal("recipes --types")
    llama = families.RECIPES["llama"]
    added = replace(llama, name="mine", model_type="mine", architectures=("MineForCausalLM",))
    monkeypatch.setitem(families.RECIPES, "mine", added)
    assert terminal.json("recipes --types")[-1]["architectures"] == ["MineForCausalLM"]
