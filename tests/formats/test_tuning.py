"""Models changed a little: what trains, merged and back bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.testing import assert_close

import tiny
from changed import LORA, logits, moved
from glassformer import generation
from glassformer.core.config import objective as objectives
from glassformer.core.config import run
from glassformer.core.nn import build_model
from glassformer.core.training.optimizer import Optimizer
from glassformer.formats import tuning
from mistakes import mistake

CELLS = [
    (name, (f"*.cells.*.{kind}",))
    for name in ("gru", "lstm", "bahdanau", "cho")
    for kind in ("state", "input")
]


@pytest.mark.parametrize("name, paths", [*CELLS, ("mixtral", ("*.router",))])
def test_a_change_counts_where_a_kernel_takes_weights_and_not_layers(name, paths):
    """PyTorch's recurrent kernels, the halves of an attending cell's input, and the router in
    fp32."""
    model = moved(tiny.ALL[name], objectives.LoRA(rank=3, alpha=6.0, target_modules=paths))
    source = (tiny.tokens(3, 12, seed=5),) if hasattr(model, "encoder") else ()
    beside = model(tiny.tokens(), *source).logits
    beside.square().mean().backward()
    assert all(weight.grad.abs().sum() > 0 for _, weight in tuning.trained(model))
    for layer in tuning.adapted(model).values():
        layer.merge()
    assert_close(tiny.logits(model), beside, rtol=1e-5, atol=3e-5)
    with torch.no_grad():
        for layer in tuning.adapted(model).values():
            layer.unmerge()
            layer.up.zero_()
    assert not torch.allclose(tiny.logits(model), beside, atol=1e-2)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_change_starts_as_none_merges_and_goes_back_bit_for_bit(name):
    plain = tiny.model(name)
    model = tiny.model(name)
    tuning.tune(model, LORA)
    assert torch.equal(logits(plain), logits(model))
    model = moved(tiny.DECODERS[name])
    beside = logits(model)
    assert not torch.allclose(beside, logits(plain), atol=1e-2)
    for layer in tuning.adapted(model).values():
        layer.merge()
    assert_close(logits(model), beside, rtol=1e-5, atol=1e-5)
    for layer in tuning.adapted(model).values():
        layer.unmerge()
    assert torch.equal(logits(model), beside)
    local = dict(plain.named_parameters())
    assert all(
        torch.equal(weight, local[n]) for n, weight in model.named_parameters() if n in local
    )
    tuning.merge_and_unload(model)
    assert not tuning.adapted(model)
    assert [n for n, _ in model.named_parameters()] == list(local)
    assert_close(logits(model), beside, rtol=1e-5, atol=1e-5)


def test_a_generation_before_does_not_hide_the_change():
    def tokens(model, count):
        run = generation.generate(model, None, [[1, 2, 3]], max_new=count, temperature=0.0).run()
        return run.rows[0].tokens

    model = tiny.model("llama")
    tokens(model, 4)  # lays packed copies
    changed = moved(tiny.DECODERS["llama"])
    tuning.tune(model, LORA)
    model.load_state_dict(changed.state_dict())
    adapted = tokens(model, 12)
    tuning.merge_and_unload(changed)
    assert adapted == tokens(changed, 12)


def test_the_optimizer_sees_only_what_trains():
    model = build_model(tiny.DECODERS["llama"], seed=1)
    tuning.tune(model, LORA)
    pieces = itertools.product((0, 1), "qv", ("down", "up"))
    names = {f"decoder.blocks.{i}.attn.{x}.{name}" for i, x, name in pieces}
    assert set(Optimizer(model, run.AdamW()).parameters) == names
    model = build_model(tiny.bert(), seed=1)
    tuning.tune(model, objectives.Frozen(train=("pool.*",)), new=["head.norm.bias"])
    names = {n for n, _ in model.named_parameters() if n.startswith("pool.")} | {"head.norm.bias"}
    assert set(Optimizer(model, run.Muon()).parameters) == names


@pytest.mark.parametrize(
    "options, message",
    [
        (
            objectives.LoRA(target_modules=("*.attn.x",)),
            r"LoRA.target_modules \*.attn.x names no linear layer.*such as decoder.blocks.0",
        ),
        (
            objectives.LoRA(target_modules=("*.attn.q", "*.atn.v")),
            r"LoRA.target_modules \*.atn.v names no linear layer.*such as decoder.blocks.0",
        ),
        (
            objectives.Frozen(train=("nose.*",)),
            r"Frozen.train nose.\* names no weight.*such as "
            r"embed.token.weight",
        ),
        (
            objectives.LoRA(modules_to_save=("*norm*", "pool.*", "head.x")),
            r"LoRA.modules_to_save head.x names no weight.*such as ",
        ),
    ],
)
def test_patterns_that_name_nothing(options, message):
    with mistake(message):
        tuning.tune(build_model(tiny.DECODERS["llama"], seed=1), options)


def test_a_layer_of_pytorchs_own_is_adapted_as_well():
    model = tiny.model("llama")
    actual = model.decoder.blocks[0].attn.q
    linear = torch.nn.Linear(actual.in_features, actual.out_features, bias=False)
    linear.weight = actual.weight
    model.decoder.blocks[0].attn.v = linear
    tuning.tune(model, LORA)
    assert "decoder.blocks.0.attn.v" in tuning.adapted(model)
