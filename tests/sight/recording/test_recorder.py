"""Modules that are hard to record: every number opens, no bit changes, and what cannot be opened is refused in
one sentence."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
import hard_modules
import walked
from glassformer.core.errors import UserError
from glassformer.sight import wording
from glassformer.sight.recording import ModuleTrace, explain, operations, rules
from glassformer.sight.recording.written_out import attention

WIDTH = hard_modules.WIDTH


@pytest.fixture(autouse=True)
def by_steps():
    """PyTorch's own transformer layers compute in steps, watched or not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def trace_of(name, keep=1 << 30):
    module, args, kwargs = hard_modules.call(name)
    return ModuleTrace(module, args, kwargs, keep)


@pytest.mark.parametrize("name", hard_modules.CALLS)
def test_every_number_opens_and_no_bit_changes(name):
    trace = trace_of(name)
    assert walked.is_unchanged(trace)
    wrong = walked.walk(trace, 120)
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", hard_modules.CALLS)
def test_thousands_of_numbers_open(name):
    wrong = walked.walk(trace_of(name), 3000, seed=1)
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.parametrize("name", hard_modules.CALLS)
def test_what_is_not_kept_reads_the_same(name):
    every, bare = trace_of(name), trace_of(name, keep=0)
    assert bare.kept_bytes == 0
    assert every.addresses() == bare.addresses()
    rng = random.Random(0)
    pairs = [
        (a, b)
        for full_op, bare_op in zip(every.operations, bare.operations, strict=True)
        for a, b in zip(full_op.outputs, bare_op.outputs, strict=True)
        if math.prod(a.shape) and a.operation.name != "empty"  # whose numbers are any
    ]
    for a, b in rng.sample(pairs, min(25, len(pairs))):
        index = tuple(rng.randrange(size) for size in a.shape)
        assert str(explain(a, index)) == str(explain(b, index))


@pytest.mark.parametrize("name", hard_modules.CALLS)
def test_a_part_is_computed_from_the_parts_that_it_needs(name):
    rng = random.Random(2)
    for operation in trace_of(name).operations:
        for value in operation.outputs:
            if not math.prod(value.shape) or operation.name in ("empty", "overlay"):
                continue
            region = rules.cell(tuple(rng.randrange(size) for size in value.shape))
            needed = rules.need(operation, value, region)
            pairs = zip(operation.inputs, needed.inputs, strict=True)
            result = operation.run([rules.read(x, at) for x, at in pairs])[value.output]
            close = 1e-2 if value.dtype == torch.bfloat16 else 1e-5
            assert_close(
                result[rules.relative(region, needed.output)],
                rules.read(value, region),
                rtol=close,
                atol=close,
                equal_nan=True,
            )


@pytest.mark.parametrize("mask", [None, "bool", "float", "causal"])
@pytest.mark.parametrize("keys", [4, 2])
def test_attention_in_steps_is_the_fused_function(mask, keys):
    q, k = hard_modules.noise(2, 4, 5, WIDTH), hard_modules.noise(2, keys, 5, WIDTH, seed=1)
    visible = torch.ones(5, 5, dtype=torch.bool).tril(1)
    bias = {"bool": visible, "float": hard_modules.noise(5, 5, seed=2)}.get(mask or "")
    arguments: dict[str, Any] = {"attn_mask": bias, "is_causal": mask == "causal", "scale": 0.3}
    arguments["enable_gqa"] = keys < 4
    fused = F.scaled_dot_product_attention(q, k, k + 1, **arguments)
    assert_close(attention(q, k, k + 1, **arguments), fused)


def test_a_line_says_which_variables_it_fills():
    line = operations.Line("/home/me/model.py", 7, ("q", "k"))
    assert str(line) == "model.py:7"
    assert [line.variable(at, 2) for at in (0, 1)] == ["q", "k"]
    assert line.variable(0, 3) == ""
    hidden = operations.calling_line()
    assert hidden.variables == ("hidden",) and str(hidden).startswith("test_recorder.py:")


def test_torch_s_own_layers_differ_by_rounding_where_their_kernel_is_on():
    torch.backends.mha.set_fastpath_enabled(True)
    assert trace_of("encoder_layer").check() < 1e-6


# --------------------------------------------------------------------------------------- addresses


def test_a_module_that_runs_again_is_numbered():
    trace = trace_of("twice")
    again = {name for name in trace.aliases if name.startswith("step")}
    assert again >= {"step", "step:2", "step:3", "step.0:3", "step.1:2"}
    assert not torch.equal(trace["step"], trace["step:2"])


def test_results_are_named_as_they_are_returned():
    for name, fields in {
        "named_tuple": {"first", "second"},
        "record": {"states", "parts.0", "parts.1"},
        "nested": {"a.0", "a.1.0", "a.1.1.b"},
        "input_returned": {"output.0", "output.1"},
        "one_layer": {"output"},
    }.items():
        assert fields <= set(trace_of(name).aliases)


def test_inputs_have_the_names_of_the_parameters():
    trace = trace_of("several")
    assert {"x", "pair.0", "pair.1.shift", "gate"} <= set(trace.values)
    assert trace.explain("gate[0,0]").kind == "input"


def test_a_tied_weight_is_read_by_both():
    trace = trace_of("tied")
    explanation = trace.explain("output[0,1,4]")
    values = (group.value for group in (*explanation.factors, *explanation.others))
    assert {x.address for x in values if x.kind == "weight"} == {"embed.weight"}


def test_each_version_of_a_value_that_is_overwritten_stays():
    trace = trace_of("added_in_place")
    versions = [x for x in trace.addresses() if x == "y" or x.startswith("y.")]
    assert len(versions) >= 4
    module, (x,), _ = hard_modules.call("added_in_place")
    first = trace.explain("before[0,1,2]").operands[0]
    assert first.value == module.layer(x)[0, 1, 2].item()
    _, last = trace.why("output[0,1,2]", up=1)
    assert last.address.startswith("y") or last.address.startswith("before")


def test_a_pass_again_is_another_trace():
    module, args, kwargs = hard_modules.call("remembering")
    first, second = ModuleTrace(module, args, kwargs), ModuleTrace(module, (args[0] * 2,), kwargs)
    assert not torch.equal(first["output"], second["output"])
    for trace in (first, second):
        assert not walked.walk(trace, 60)


def test_a_later_pass_that_writes_into_a_buffer_leaves_the_trace_alone():
    class Total(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(WIDTH))

        def forward(self, x):
            self.total += x.sum(0)
            return self.total * 2

    module, x = Total(), hard_modules.noise(3, WIDTH)
    trace = ModuleTrace(module, (x,))
    before = trace["output"].clone()
    module(x)
    assert torch.equal(trace["output"], before)
    assert not walked.walk(trace, 60)
    assert trace.explain("total[2]").value == 0


def test_the_verb_takes_any_module():
    module, args, kwargs = hard_modules.call("several")
    trace = glassformer.trace(module, *args, **kwargs)
    assert isinstance(trace, ModuleTrace)
    assert trace.check() == 0.0
    assert trace.explain("output[1,2,0]").difference < 1e-6


# ------------------------------------------------------------------------------------------- edits


@pytest.mark.parametrize(
    "name", ["twice", "indexed_write", "added_in_place", "multi_head", "recurrent"]
)
def test_an_edit_that_changes_nothing_changes_no_bit(name):
    trace = trace_of(name)
    for address in trace.addresses():
        if trace.values[address].operation.is_written_out:  # type: ignore[union-attr]
            continue
        again = trace.edit({address: lambda x: x})
        assert walked.is_unchanged(again), address


def test_an_edit_of_one_number_moves_what_is_computed_from_it():
    trace = trace_of("sliced_scan")
    assert trace.edit({"state[0,3]": lambda x: x + 1}).check() == pytest.approx(1, abs=1e-6)
    edited = trace.edit({"states[1]": torch.zeros_like})
    assert edited["output"][1].abs().max() == 0
    assert not walked.walk(edited, 100)


def test_an_edit_of_a_step_of_fused_attention_takes_effect():
    class Attention(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True) + 1

    trace = ModuleTrace(Attention(), (hard_modules.noise(1, 2, 4, WIDTH),))
    edited = trace.edit({"pattern": torch.zeros_like})
    assert torch.equal(edited["output"], torch.ones(1, 2, 4, WIDTH))


# ---------------------------------------------------------------------------------------- refusals


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, result="tensor"):
        hidden = self.dropout(self.layer(x))
        return hidden if result == "tensor" else "a word"


def refused(call, *words):
    with pytest.raises(UserError) as error:
        call()
    text = str(error.value)
    assert all(word in text for word in words), text
    assert "\n" not in text and len(text) < 300


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, WIDTH, 2, dropout=0.3)

    def forward(self, x):
        return self.rnn(x)[0]


class Attending(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.2)


def test_what_cannot_be_opened_is_refused_in_a_sentence():
    module, x = Plain().eval(), hard_modules.noise(2, WIDTH)
    refused(lambda: glassformer.trace(Plain().train(), x), "dropout", "model.eval()")
    refused(lambda: glassformer.trace(Recurrent().train(), x), "random numbers", "model.eval()")
    refused(lambda: glassformer.trace(Attending().eval(), x), "dropout", "model.eval()")
    refused(lambda: glassformer.trace(module, x, result="word"), "Plain", "no tensor")
    with torch.no_grad():
        scripted = torch.jit.trace(nn.Linear(WIDTH, 2), x)
    in_place = nn.Linear(WIDTH, 2)
    in_place.compile()
    for candidate, words in (
        (torch.compile(module), "torch.compile"),
        (in_place, "torch.compile"),
        (scripted, "scripted"),
    ):
        refused(lambda: glassformer.trace(candidate, x), words)  # noqa: B023
        refused(lambda: glassformer.trace(nn.Sequential(candidate), x), words, "0 is")  # noqa: B023


def test_an_address_that_is_not_there_names_the_nearest():
    trace = ModuleTrace(Plain().eval(), (hard_modules.noise(2, WIDTH),))
    for address, *words in (
        ("hiden[0,0]", '"hiden"', "hidden"),
        ("hidden[0,8]", "2 x 8", "outside"),
        ("hidden[0,-9]", "-9"),
        ("hidden[0,0,0]", "2 x 8"),
        ("hidden", "hidden[0,0]"),
        ("hidden[0]", "hidden[0,0]"),
        ("hidden[0,1:2]", "hidden[0,0]"),
        ("hidden 0 0", "no address"),
        ("hidden[a]", "no index"),
    ):
        refused(partial(trace.explain, address), *words)


def test_a_function_is_worded_by_its_table_or_named():
    """The sentences and equations of ``wording.toml``; what it lacks is called by its own name."""

    class Legs(nn.Module):
        def forward(self, x):
            side = torch.hypot(x, x)
            return side * x

    trace = ModuleTrace(Legs(), (torch.tensor([3.0, 4.0]),))
    product, side = trace.explain("output[1]"), trace.explain("side[1]")
    assert product.equation == wording.EQUATIONS["mul"]
    assert product.sentence == wording.SENTENCES["mul"].format(count=2)
    assert side.equation == "hypot(..)"
    assert side.sentence == "The function hypot of 2 numbers."


def test_an_edit_that_cannot_be_is_refused():
    trace = ModuleTrace(Plain().eval(), (hard_modules.noise(2, WIDTH),))
    refused(lambda: trace.edit({"hidden": lambda x: x[0]}), "(8,)", "(2, 8)", "keep the shape")
    refused(lambda: trace.edit({"hidden": lambda x: 3}), "tensor")
    for name in ("x", "layer.weight"):
        refused(partial(trace.edit, {name: torch.zeros_like}), "an input or a weight of the pass")
    refused(partial(trace.edit, {"nowhere": torch.zeros_like}), "nowhere")


def test_a_pass_that_draws_noise_is_refused():
    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    refused(lambda: glassformer.trace(Noisy(), torch.zeros(2)), "randn_like", "noise")
