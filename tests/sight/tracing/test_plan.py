"""The law of the plan: replayed operation by operation, it gives the model's own values, for every
family.

So it holds each kind of operation (attention, places, recurrent, sums, closed) and what describes
them: descriptions, sublayers, recurrent.
"""

from __future__ import annotations

import inspect
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import glassformer
import glassformer.core.config as c
import tiny
from glassformer.core.config import extend, serial
from glassformer.core.config.serial import members
from glassformer.core.nn import Model, build_model
from glassformer.core.nn.build import _MAKERS
from glassformer.fast.quantized import QuantizedLayout, quantize_weights
from glassformer.formats import lora
from glassformer.sight import paths
from glassformer.sight.tracing import Op, Trace, plan
from glassformer.sight.tracing.kinds import KINDS

OWN = Path(__file__).parents[2] / "own_parts.py"


@pytest.fixture
def own_types(monkeypatch):
    """The parts of own_parts.py, known while the test runs."""
    monkeypatch.setattr(serial, "_MEMBERS", {})
    monkeypatch.setattr(sys.modules["glassformer.core.nn.build"], "_MAKERS", dict(_MAKERS))
    monkeypatch.setattr(extend, "_USED", set())
    glassformer.use(OWN)
    slots = c.Norm | c.FeedForward | c.Position
    return serial.members(slots) | serial.members(c.Block)


def traced(model: Model, length: int = 11) -> Trace:
    pair = isinstance(model.config, c.EncoderDecoder)
    source = tiny.tokens(1, 9, seed=5) if pair else None
    return Trace(model, None, tiny.tokens(1, length), source)


def eager(config: c.Model, dtype: torch.dtype) -> Model:
    model = tiny.model(config).to(dtype)
    model.engine = "eager"
    return model


def check(trace: Trace, bound: float) -> None:
    """Every recorded value against its operation, and cells of every operation against their
    arithmetic."""
    recorded = 0
    for op in trace.plan:
        if op.kind == "leaf":
            continue
        again = trace.compute(op)
        assert tuple(again.shape) == op.shape, op.id
        for name in (op.id, *trace.names.get(op.id, ())):
            if name in trace.records:
                recorded += 1
                torch.testing.assert_close(
                    again, trace.records[name], rtol=bound, atol=bound, msg=op.id
                )
    assert recorded >= 5
    draw = random.Random(0)
    for op in trace.plan:
        at = [draw.randrange(size) for size in op.shape]
        cell = trace.explain(f"{op.id}[{','.join(map(str, at))}]")
        assert abs(cell.difference) <= 20 * bound * max(1.0, abs(cell.value)), cell
        assert op.kind == "leaf" or says(op), op


def says(op: Op) -> bool:
    """True where the line that an operation names exists."""
    assert op.code is not None
    function, piece = op.code
    return (
        piece in inspect.getsource(inspect.unwrap(function))
        and op.source.rpartition(":")[2].isdigit()
    )


@pytest.mark.parametrize("name", tiny.ALL)
def test_replayed_it_is_the_model(name):
    model = eager(tiny.ALL[name], torch.float64)
    trace = traced(model)
    check(trace, 1e-12)
    # what the tape knows, the plan knows
    assert [path for path in paths(model) if path not in trace.plan] == []
    # of training alone
    idle = {path for path in trace.parameters if path.endswith("ffn.noise.weight")}
    assert set(trace.parameters) - set(trace.plan.weights.values()) == idle


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "mixtral", "bahdanau"])
def test_in_fp32_too(name):
    check(traced(eager(tiny.ALL[name], torch.float32)), 1e-5)


def test_a_recorded_pass_is_the_unwatched_one():
    for name in ("llama", "bert", "vaswani", "gru"):
        assert traced(tiny.model(tiny.ALL[name])).check() == 0.0


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_quantised_weights_say_that_x_is_rounded(name):
    """A pass is replayed with the same codes; a number again from its terms is off by what rounding
    x does."""
    model = eager(tiny.ALL[name], torch.float32)
    quantize_weights(model, QuantizedLayout(4))
    trace = traced(model)
    assert trace.check() == 0.0
    ids = 0
    for op in trace.plan:
        if op.kind in ("linear", "lm_head", "expert") and "weight" in op.weights:
            cell = trace.explain(f"{op.id}[{','.join('0' * len(op.shape))}]")
            assert "codes of" in cell.sentence and "rounded to 8 bits" in cell.sentence
            assert abs(cell.difference) < 0.02 * float(cell.terms.abs().sum())
            ids += 1
    assert ids >= 15


def test_low_rank_changes_stand_apart():
    model = eager(tiny.ALL["llama"], torch.float64)
    lora.adapt(model, {"decoder.blocks.0.attn.q": (2, 0.5), "decoder.blocks.1.ffn.down": (3, 2.0)})
    for layer in lora.adapted(model).values():
        torch.nn.init.normal_(layer.up)
        torch.nn.init.normal_(layer.down)
    trace = traced(model)
    check(trace, 1e-12)
    base, change = (trace[f"decoder.blocks.0.attn.q_proj.{name}"] for name in ("base", "lora_up"))
    torch.testing.assert_close(base + change, trace["decoder.blocks.0.attn.q_proj"], rtol=0, atol=0)


def test_the_kinds_are_a_closed_set():
    kinds = {op.kind for name in tiny.ALL for op in traced(tiny.model(tiny.ALL[name]), 3).plan}
    assert kinds <= set(KINDS)
    assert set(KINDS) - kinds == {"edit", "generic"}


@pytest.mark.parametrize(
    "slot",
    [c.FeedForward, c.Norm, c.Model, c.Body, c.Position],
    ids=["feedforward", "norm", "model", "body", "position"],
)
def test_every_type_of_ours_has_a_description(slot):
    actual = set(get_args(slot)) | {
        kind for kind in members(slot).values() if kind.__module__.startswith("glassformer.")
    }
    # described by what they do to embeddings, queries and scores
    by_stack = set(get_args(c.Position))
    missing = [kind.__name__ for kind in actual - by_stack if kind not in plan.described()]
    assert missing == []


def test_a_type_without_a_description_fails_by_name(own_types):
    with pytest.raises(KeyError, match="no description of ReluSquared"):
        plan.describe(own_types["ReluSquared"](8), None)


def test_parts_of_ones_own_are_closed_cards(own_types):
    block = replace(
        tiny.block(), feedforward=own_types["Bilinear"](24), norm=own_types["ScaleNorm"]()
    )
    config = tiny.decoder(block, position=own_types["Decay"](), last_norm=c.RMSNorm())
    model = build_model(config, seed=1).eval().double()
    model.engine = "eager"
    trace = traced(model)
    check(trace, 1e-12)
    closed = {op.id.rpartition(".")[2] for op in trace.plan if op.kind == "generic"}
    assert closed == {"in", "bias", "write"}
    cell = trace.explain("decoder.blocks.0.ffn.write[3,4]")
    assert cell.kind == "generic"
    assert "nobody has described" in cell.sentence


def test_a_block_of_ones_own_is_one_card(own_types):
    block = own_types["DeepNorm"](c.Attention(4), c.MLP(64))
    trace = traced(build_model(tiny.decoder(block), seed=1).eval().double())
    check(trace, 1e-12)
    assert trace.plan["decoder.blocks.1.resid"].kind == "generic"
