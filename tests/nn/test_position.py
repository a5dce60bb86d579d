"""Positions: sinusoids as the paper and its early programs draw them, rotary, its scalings
(``rope_scaling``), ALiBi's slopes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers.models.marian.modeling_marian as marian
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.config import serial
from glassformer.core.nn import Flow, build, build_model
from glassformer.scale.cost import cost
from mistakes import mistake

DIM = 16
LENGTH = 40
HALF = 2**-8  # the most that one rounding to bf16 changes a number by, relative to it


def frequencies(position, dim=DIM):
    """Vectors that the scheme adds to the embeddings of positions 0 .. LENGTH - 1, through a
    model's own forward pass."""
    body = c.Stack(0, (tiny.block(c.Attention(1, head_dim=8)),), position)
    model = build_model(c.Decoder(dim, LENGTH, c.Embed(4), body), seed=1)
    torch.nn.init.zeros_(model.embed.token.weight)
    with torch.no_grad():
        return model(torch.zeros(1, LENGTH, dtype=torch.long)).hidden[0].double().numpy()


def paper(pos, column):
    """Section 3.5, to the letter."""
    angle = pos / 10_000 ** (2 * (column // 2) / DIM)
    return math.cos(angle) if column % 2 else math.sin(angle)


def timing_signal(pos, column):
    """tensor2tensor's get_timing_signal_1d, Marian's SinusoidalPositionEmbeddings, OpenNMT-py's
    SinusoidalConcat."""
    timescales = DIM // 2
    increment = math.log(10_000) / (timescales - 1)
    angle = pos * math.exp(-increment * (column % timescales))
    return math.sin(angle) if column < timescales else math.cos(angle)


def from_one(pos, column):
    """OpenNMT-tf's SinusoidalPositionEncoder."""
    return timing_signal(pos + 1, column)


PROGRAMS = {
    "the paper": (c.Sinusoidal(), paper),
    "tensor2tensor": (c.Sinusoidal(halves=True, endpoint=True), timing_signal),
    "OpenNMT-tf": (c.Sinusoidal(halves=True, endpoint=True, offset=1), from_one),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_waves_are_those_of(name):
    position, formula = PROGRAMS[name]
    expected = np.array([[formula(pos, column) for column in range(DIM)] for pos in range(LENGTH)])
    for second, _ in PROGRAMS.values():
        off = np.abs(frequencies(second) - expected).max()
        assert off < 5e-6 if second == position else off > 0.1


@pytest.mark.parametrize("dim", [16, 15])
def test_waves_are_those_of_transformers_marian(dim):
    weight = marian.MarianSinusoidalPositionalEmbedding(LENGTH, dim).create_weight()
    assert (
        np.abs(frequencies(c.Sinusoidal(halves=True), dim) - weight.double().numpy()).max() < 5e-6
    )


def test_a_config_saved_before_is_the_papers():
    message = {"type": "Sinusoidal", "theta": 10_000.0, "halves": True}
    assert serial.from_dict(c.Position, message) == c.Sinusoidal(halves=True)
    assert serial.from_dict(c.Position, {"type": "Sinusoidal"}) == c.Sinusoidal()


def test_what_the_waves_cannot_be():
    with mistake("dim 15 is odd; make it even"):
        frequencies(c.Sinusoidal(endpoint=True), 15)
    with mistake(r"Sinusoidal\.theta is 0"):
        c.Sinusoidal(theta=0)
    with mistake(r"Sinusoidal\.offset is -1; give 0 or more"):
        c.Sinusoidal(offset=-1)
    assert np.isfinite(frequencies(c.Sinusoidal(endpoint=True), 2)).all()


# ----------------------------------------------------------------------- rotary, RoPE scaling,
# ALiBi


def speeds(cfg, head_dim):
    """Radians a position of each wave (head_dim / 2), and what sines and cosines are multiplied
    by."""
    rotary = build(cfg, 64, 4, True)
    speed = 1.0 / cfg.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    return rotary.scaling(speed, cfg.theta) if rotary.scaling is not None else (speed, 1.0)


@pytest.mark.parametrize("scaling", [None, c.YarnScaling(4.0, 256), c.LinearScaling(3.0)], ids=str)
def test_rotary_angles_are_made_in_fp32_whatever_is_turned(scaling):
    cfg = c.Rotary(1e4, scaling=scaling)
    speed, size = speeds(cfg, 16)
    pos = torch.tensor([[3, 257, 4099, 99_991]])
    angle = pos[0, :, None].float().double() * speed.double()
    flow = Flow(pos)
    rotary = build(cfg, 64, 4, True)
    for dtype, rounding in ((torch.bfloat16, HALF), (torch.float32, 2**-24)):
        ones = torch.ones(1, 1, 4, 16, dtype=dtype)
        first, second = rotary.rotate(ones, flow).double()[0, 0].chunk(2, -1)
        # speeds and angles themselves are rounded in fp32
        slack = 8 * rounding + float(angle.max()) * 2**-22
        assert_close(first, size * (angle.cos() - angle.sin()), rtol=0, atol=slack)
        assert_close(second, size * (angle.cos() + angle.sin()), rtol=0, atol=slack)


def test_frequencies_are_made_once_and_never_of_stand_ins():
    """A compiler's and a fake mode's tensors are nobody else's; those of inference mode serve a
    training."""
    rotary = build(c.Rotary(scaling=c.LinearScaling(3.0)), 64, 4, True)
    calls = []
    scaling = rotary.scaling
    x = torch.randn(1, 4, 5, 16)
    pos = torch.arange(5)[None]
    rotary.scaling = lambda *args: calls.append(args) or scaling(*args)
    with FakeTensorMode() as fake:
        rotary.table(fake.from_tensor(pos), 16, torch.float32)
    torch.compile(rotary.table, backend="eager", fullgraph=True)(pos, 16, torch.float32)
    assert len(calls) == 2
    assert not rotary._frequencies
    with torch.inference_mode():
        expected = rotary.rotate(x, Flow(pos))
    x.requires_grad_()
    output = rotary.rotate(x, Flow(pos))
    output.sum().backward()
    assert len(calls) == 3
    assert torch.equal(output, expected)
    assert x.grad is not None
    assert rotary.rotate(x.detach().to("meta"), Flow(pos.to("meta"))).is_meta
    assert len(calls) == 4
    assert torch.equal(rotary.rotate(x, Flow(pos)), expected)
    assert len(calls) == 4


@pytest.mark.parametrize("fast", [32.0, 8.0, 1.0, 1000.0])
@pytest.mark.parametrize("slow", [1.0, 0.25, 1e-6])
@pytest.mark.parametrize(
    "theta, length, head_dim", [(1e4, 2048, 64), (1e6, 16, 8), (1e4, 40, 16), (1e4, 4, 4)]
)
def test_yarn_is_transformers(theta, length, head_dim, slow, fast):
    """The first and the last wave of the blend, where they are cut off, and where they are one and
    the same."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=4 * length,
        rope_parameters={
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": length,
            "rope_theta": theta,
            "beta_fast": fast,
            "beta_slow": slow,
        },
    )
    expected, size = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    scaling = c.YarnScaling(4.0, length, fast, slow)
    result, actual = speeds(c.Rotary(theta, scaling=scaling), head_dim)
    assert_close(result, expected, rtol=1e-6, atol=0)
    assert actual == pytest.approx(size)


def test_a_position_past_a_learned_table_is_a_sentence():
    """Positions may be passed, and then no count of tokens tells that the table is too short."""
    model = tiny.model("gpt2")
    length = model.config.decoder.position.length
    tokens = torch.tensor([[1, 2]])
    pos = torch.tensor([[length - 2, length - 1]])
    assert model(tokens, pos=pos).logits.isfinite().all()
    with mistake(f"position {length} is past the {length} of its table; give 0 to {length - 1}"):
        model(tokens, pos=pos + 1)


def test_a_learned_table_may_begin_at_a_later_row():
    """Two rows stand before that of position 0, and no position reads them."""
    plain = tiny.model("gpt2")
    table = replace(plain.config.decoder.position, start=2)
    cfg = replace(plain.config, decoder=replace(plain.config.decoder, position=table))
    model = build_model(cfg)
    weights = plain.state_dict()
    rows = weights["decoder.position.weight"]
    weights["decoder.position.weight"] = torch.cat((torch.full_like(rows[:2], torch.nan), rows))
    model.load_state_dict(weights)
    tokens = torch.arange(table.length)[None] % 11
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    assert cost(cfg).total == cost(plain.config).total + 2 * cfg.dim
    with mistake(f"position {table.length} is past the {table.length} of its table"):
        model(tokens[:, :1], pos=torch.tensor([[table.length]]))


def test_alibi_falls_with_the_distance_on_both_sides():
    pos = torch.tensor([[0, 3, 4]])
    bias = build(c.Alibi(), 64, 2, False).bias(pos, pos)
    distance = torch.tensor([[0, 3, 4], [3, 0, 1], [4, 1, 0]])
    assert torch.equal(bias[0], -distance * torch.tensor([2.0**-4, 2.0**-8])[:, None, None])


def test_neighbours_turn_as_complex_numbers():
    """Llama's and GPT-J's own code: each pair of neighbours is one complex number times
    e^(i pos theta^(-2 j / D)), in GPT-J of some of the numbers alone."""
    x = torch.randn(2, 3, 11, 16)
    pos = torch.randint(0, 500, (2, 11))
    rotary = build(c.Rotary(500.0, fraction=0.5, interleaved=True), 16, 1, True)
    turned, unrotated = rotary.rotate(x, Flow(pos)).split(8, -1)
    assert torch.equal(unrotated, x[..., 8:])
    angle = pos[:, None, :, None].double() * 500.0 ** -(torch.arange(4).double() / 4)
    pairs = torch.view_as_complex(x[..., :8].double().unflatten(-1, (4, 2)))
    spun = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert_close(turned, spun.float(), rtol=0, atol=1e-4)


def test_neighbours_are_halves_in_another_order():
    """With each head's rows of the matrices put in order the two models are one: what a published
    layout does."""
    cfg = tiny.DECODERS["llama"]
    position = replace(cfg.decoder.position, interleaved=True)
    neighbours = tiny.model(replace(cfg, decoder=replace(cfg.decoder, position=position)))
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    for block in neighbours.decoder.blocks:
        for layer in (block.attn.q, block.attn.k):
            layer.weight.data = layer.weight.view(-1, 8, tiny.DIM)[:, order].flatten(0, 1)
    assert_close(tiny.logits(neighbours), tiny.logits(tiny.model(cfg)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", range(1, 18))
def test_alibis_slopes_are_blooms(heads):
    pytest.importorskip("transformers")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    expected = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # one token away
    pos = torch.arange(2)[None]
    result = build(c.Alibi(), 64, heads, True).bias(pos, pos)[0, :, 1, 0]
    assert_close(-result, expected, rtol=1e-6, atol=0)
