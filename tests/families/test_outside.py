"""A recipe in a user's own file: a Llama with capped logits, named as Llama's first files; found,
loaded and saved."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import glassformer
import tiny
from folders import read_json
from glassformer import cli
from glassformer import families as recipes
from glassformer.core.nn import build_model
from glassformer.formats import store
from mistakes import mistake
from tiny import equal_tensors

PAGE = '''
"""Llama with capped logits, its weights as Llama's first files hold them: rotary pairs are neighbours."""
from dataclasses import replace

from glassformer import families as recipes
from glassformer.families import llama
from glassformer.families import NameRule, Recipe, Table

PARTS = {"attn.v": "attention.wv", "attn.out": "attention.wo", "attn_norm": "attention_norm", "ffn_norm": "ffn_norm"}
PARTS |= {"ffn.gate": "feed_forward.w1", "ffn.down": "feed_forward.w2", "ffn.up": "feed_forward.w3"}


def read(raw):
    model = llama.read_config(raw)
    return replace(model, head=replace(model.head, softcap=raw.number("cap", None)))


def write(model):
    return {**llama.write_config(model), "cap": model.head.softcap}


def weights(model):
    attention = model.decoder.pattern[0].attention
    turned = [("q", attention.heads), ("k", attention.kv_heads or attention.heads)]
    return Table((
        NameRule("tok_embeddings.weight", "embed.token.weight"),
        NameRule("norm.weight", "decoder.last_norm.weight"),
        NameRule("output.weight", "head.proj.weight"),
        *(NameRule(f"layers.{{i}}.{b}.weight", f"decoder.blocks.{{i}}.{a}.weight") for a, b in PARTS.items()),
        *(
            NameRule(f"layers.{{i}}.attention.w{x}.weight", f"decoder.blocks.{{i}}.attn.{x}.weight",
                 axes="(h d 2) c -> (h 2 d) c", heads=heads)
            for x, heads in turned
        ),
    ), ignore=("rope.freqs",))


recipes.add(replace(
    llama.LLAMA, name="first-llama", paper="mine", sizes={"7b": llama.LLAMA.sizes["2-7b"]},
    architectures=("FirstLlama",), model_type="first-llama", weights=weights, read_config=read, write_config=write,
))
'''


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "my_recipe.py"
    path.write_text(PAGE)
    before = dict(recipes.RECIPES)
    yield path
    recipes.RECIPES.clear()
    recipes.RECIPES.update(before)


def test_a_recipe_of_ones_own_is_found_loads_and_saves(page, tmp_path, capsys):
    glassformer.use(page)
    assert recipes.find("first-llama/7b") == recipes.find("llama/2-7b")
    assert "first-llama/7b" in recipes.names()
    assert cli.main(["recipes"]) == 0
    assert "first-llama/7b" in capsys.readouterr().out
    small = recipes.find("llama/stories260k")
    head = replace(small.head, tied=False, softcap=5.0)
    model = tiny.model(replace(small, head=head))
    store.save(model, tmp_path / "capped")
    loaded, _ = glassformer.load(tmp_path / "capped")
    assert recipes.plain(loaded.config) == recipes.plain(model.config)
    assert equal_tensors(loaded.state_dict(), model.state_dict())
    assert read_json(tmp_path / "capped" / "config.json")["architectures"] == ["FirstLlama"]
    capped = load_file(tmp_path / "capped" / "model.safetensors")
    # the same weights, as a Llama
    plain = build_model(replace(small, head=replace(head, softcap=None)), seed=1)
    store.save(plain, tmp_path / "plain")
    reference = load_file(tmp_path / "plain" / "model.safetensors")[
        "model.layers.0.self_attn.q_proj.weight"
    ]
    # transformers' conversion script turns it so:
    q = capped["layers.0.attention.wq.weight"]
    size = small.dim
    assert torch.equal(
        q.view(8, size // 16, 2, size).transpose(1, 2).reshape(size, size), reference
    )


def test_names_that_are_taken(page):
    glassformer.use(page)
    local = recipes.RECIPES["first-llama"]
    for changed, message in (
        ({}, 'There is a recipe "first-llama" already'),
        ({"name": "gpt2"}, 'There is a recipe "gpt2" already'),
        ({"name": "other"}, 'reads "FirstLlama", which first-llama reads already'),
        ({"name": "other", "architectures": ("Other",)}, 'reads "first-llama", which first-llama'),
        ({"name": "My/Model"}, "take small letters"),
    ):
        with mistake(message):
            recipes.add(replace(local, **changed))
    assert list(recipes.RECIPES)[-1] == "first-llama"
