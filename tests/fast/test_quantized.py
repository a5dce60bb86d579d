"""Weights of few bits in every family: what they compute, alone and in a batch, and what stays as
it was."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import kernel_reference as reference
import tiny
from glassformer.core.config import objective as objectives
from glassformer.core.nn import Tape
from glassformer.core.nn.experts import grouped
from glassformer.core.nn.replace import replace_parameter
from glassformer.fast.quantized import (
    Codes,
    QuantizedLayout,
    QuantizedWeight,
    parameter,
    quantize_weights,
    quantized,
)
from glassformer.fast.rounding import searched
from glassformer.formats import tuning
from mistakes import mistake
from seeding import generator_from

RECURRENT = {"gru", "lstm", "cho", "bahdanau", "reader"}
FAMILIES = sorted(tiny.ALL.keys() - RECURRENT)


def weight_of(bits, shape=(40, 100), group=32):
    plain = torch.randn(shape, generator=generator_from(1))
    return plain, parameter(Codes.of(searched(plain, bits, group), bits, group), torch.float32)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [32, 64])
def test_a_product_is_the_kernels_own(bits, group):
    """Bit for bit the readable reference on codes and scales, before and after the kernels have
    taken the codes."""
    _, weight = weight_of(bits, group=group)
    data = weight.quantized_data
    codes = data.unpacked()
    scales = data.scales
    x = torch.randn(7, 100)
    bias = torch.randn(40)
    fine = scales.repeat_interleave(group // 32, 1)[:, :4]
    expected = reference.integer_product(x, codes, fine, bias)
    for _ in range(2):
        assert torch.equal(F.linear(x, weight, bias), expected)
    assert torch.equal(data.unpacked(), codes)
    assert torch.equal(data.scales, scales)
    exact = F.linear(x, weight.decoded(), bias)
    assert float((expected - exact).norm() / exact.norm()) < 0.01


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(bits):
    _, weight = weight_of(bits)
    x = torch.randn(9, 100)
    full = F.linear(x, weight)
    assert all(torch.equal(F.linear(x[i : i + 1], weight)[0], full[i]) for i in range(9))


def test_a_table_is_looked_up_in_and_a_stack_has_tables():
    _, table = weight_of(8)
    ids = torch.tensor([[3, 0], [39, 3]])
    assert torch.equal(F.embedding(ids, table), table.decoded()[ids])
    F.linear(torch.randn(1, 100), table)
    assert torch.equal(F.embedding(ids, table), table.decoded()[ids])
    _, stack = weight_of(4, (3, 16, 64))
    x = torch.randn(2, 64)
    assert torch.equal(F.linear(x, stack[1]), F.linear(x, stack.unbind()[1]))
    assert torch.equal(stack[2].decoded(), stack.decoded()[2])
    assert torch.equal(stack[-1].decoded(), stack.decoded()[2])


def test_experts_multiply_by_their_codes():
    """A token's bits are its own, whether its experts meet it alone or all rows in one product."""
    _, stack = weight_of(4, (3, 16, 64))
    rows = torch.randn(9, 64)
    totals = torch.tensor([4, 0, 5])
    expected = torch.cat((F.linear(rows[:4], stack[0]), F.linear(rows[4:], stack[2])))
    assert torch.equal(grouped(rows, stack, None, totals), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_computes_with_8_and_4_bits(name):
    """8 bits stay near; the numbers of the codes give nearly the same; a tape changes no bit; a
    copy is one."""

    def apart(now, before):
        return float((now - before).norm() / before.norm())

    model = tiny.model(name)
    plain = tiny.logits(model)
    size = sum(weight.nbytes for weight in model.parameters())
    few = copy.deepcopy(model)
    quantize_weights(model, QuantizedLayout(8))
    now = tiny.logits(model)
    # another expert is another answer
    routed = name in (
        "mixtral",
        "deepseek",
        "noisy",
        "nanomoe",
        "deepseek_v2",
        "deepseek_v3",
        "qwen3_next",
    )
    assert apart(now, plain) < (0.2 if routed else 0.06)
    assert torch.equal(tiny.logits(copy.deepcopy(model)), now)
    tape = Tape("*")
    assert torch.equal(tiny.logits(model, tape=tape), now)
    assert tape.records
    quantize_weights(few, QuantizedLayout(4))
    share = 0.75 if name == "additive-lstm" else 0.5  # its cells stay
    assert sum(weight.nbytes for weight in few.parameters()) < share * size
    fourth = tiny.logits(few)
    for path, weight in quantized(few).items():
        replace_parameter(few, path, torch.nn.Parameter(weight.decoded()))
    assert not quantized(few)
    assert not any(isinstance(weight, QuantizedWeight) for weight in few.parameters())
    assert apart(tiny.logits(few), fourth) < (0.2 if routed else 0.05)


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_recurrent_cells_are_refused(name):
    with mistake("recurrent cells"):
        quantize_weights(tiny.model(name), QuantizedLayout(8))


@pytest.mark.parametrize(
    "options, sentence",
    [((5,), "8 or 4"), ((8, 40), "multiple of 32"), ((8, 32, 4), "8 or 16 bits, not 4")],
)
def test_layouts_that_cannot_be(options, sentence):
    with mistake(sentence):
        QuantizedLayout(*options)


def test_a_model_is_quantized_once_and_its_head_may_be_left():
    model = tiny.model("llama")
    chosen = quantize_weights(model, QuantizedLayout(4, head=16))
    assert set(chosen.values()) == {4}
    assert not any(name.startswith(("embed", "head")) for name in chosen)
    with mistake("quantized already"):
        quantize_weights(model, QuantizedLayout(8))
    pair = quantize_weights(tiny.model("llama"), QuantizedLayout(4))
    assert pair["embed.token.weight"] == pair["head.proj.weight"] == 8


@pytest.mark.parametrize("name", ["mixtral", "noisy"])
def test_routers_stay_exact(name):
    chosen = quantize_weights(tiny.model(name), QuantizedLayout(8))
    assert not any("router" in path or "noise" in path for path in chosen)
    assert any(path.endswith("ffn.up") for path in chosen)


def test_gradients_pass_to_x_and_not_to_codes():
    _, weight = weight_of(4)
    x = torch.randn(5, 100, requires_grad=True)
    y = F.linear(x, weight)
    assert torch.equal(y, F.linear(x.detach(), weight))
    y.sum().backward()
    assert_close(x.grad, weight.decoded().sum(0).expand(5, 100), rtol=1e-5, atol=1e-5)
    weight.requires_grad_(True)
    assert not weight.requires_grad
    assert weight.grad is None


@pytest.mark.parametrize("name", ["llama", "t5", "mixtral"])
def test_lora_on_quantized_weights_learns(name):
    """The loss falls, only the changes move, and a change is never put into codes."""
    model = tiny.model(name)
    quantize_weights(model, QuantizedLayout(4))
    codes = {path: weight.quantized_data.codes.clone() for path, weight in quantized(model).items()}
    for change in (objectives.Full(), objectives.Frozen(("*.attn.q.weight",))):
        with mistake("codes do not train"):
            tuning.tune(model, change)
    tuning.tune(model, objectives.LoRA(rank=4, alpha=8.0, target_modules=("*.q", "*.v", "*.out")))
    optimizer = torch.optim.Adam([weight for _, weight in tuning.trained(model)], lr=0.02)
    tokens = tiny.tokens(4, 16, seed=3)
    losses = list[float]()
    sides = (tiny.tokens(4, 9, seed=4),) if hasattr(model, "encode") else ()
    for _ in range(25):
        logits = model(tokens, *sides).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]
    now = {path: weight.quantized_data.codes for path, weight in quantized(model).items()}
    assert tiny.equal_tensors(now, codes)
    layer = next(iter(tuning.adapted(model).values()))
    with mistake("cannot be merged"):
        layer.merge()
    tuning.merge_and_unload(model)
    assert tuning.adapted(model)


def test_another_number_format_keeps_the_codes():
    model = tiny.model("llama")
    quantize_weights(model, QuantizedLayout(8))
    now = tiny.logits(model)
    wide = copy.deepcopy(model).to(torch.bfloat16)
    assert {weight.dtype for weight in wide.parameters()} == {torch.bfloat16}
    assert float((tiny.logits(wide).float() - now).norm() / now.norm()) < 0.05
    for path, weight in quantized(wide).items():
        assert torch.equal(weight.quantized_data.codes, quantized(model)[path].quantized_data.codes)
