"""The causes of a number add up to it, in any module, and are those that ``sight.attribute`` finds in
our own models.

``causes`` carries a number back through the operations that ``linearised`` makes linear.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.families.mechanisms import LoopedStack
from glassformer.sight import attribute
from glassformer.sight.recording import ModuleTrace
from glassformer.sight.recording.operations import Operation
from mistakes import mistake
from seeding import generator_from
from tiny import inputs_of
from tiny_transformers import SIZES

IDS = torch.tensor([[5, 3, 8, 61, 7, 22, 9, 4]])


def deep(model):
    """In float64, no bias zero and no gain one."""
    model = model.eval().double()
    draw = generator_from(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model


def adds_up(causes, within=1e-6):
    assert causes.sum == math.fsum(cause.value for cause in causes.causes)
    size = max(abs(causes.value), max(abs(cause.value) for cause in causes.causes))
    assert causes.difference <= within * size


# ----------------------------------------------------------------------- models of ``transformers``

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {}),
    "GPT2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    "Bert": ("BertForMaskedLM", {}),
    "Mixtral": ("MixtralForCausalLM", {"num_local_experts": 4}),
    "T5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "decoder_start_token_id": 0},
    ),
    "Gemma2": ("Gemma2ForCausalLM", {"head_dim": 8}),
    "GptOss": ("GptOssForCausalLM", {"head_dim": 8, "num_local_experts": 4}),
    "Olmo2": ("Olmo2ForCausalLM", {}),
    "Mamba": ("MambaForCausalLM", {"state_size": 4}),
}


def transformers_model(name):
    transformers = pytest.importorskip("transformers")
    kind, sizes = OTHERS[name]
    config = getattr(transformers, f"{name}Config")(**SIZES | sizes)
    torch.manual_seed(0)
    inputs = {"input_ids": IDS, **({"decoder_input_ids": IDS[:, :5]} if name == "T5" else {})}
    return getattr(transformers, kind)._from_config(config, experts_implementation="eager"), inputs


@pytest.mark.parametrize("name", OTHERS)
def test_a_logit_of_any_model_splits(name):
    model, inputs = transformers_model(name)
    trace = ModuleTrace(deep(model), (), inputs)
    causes = trace.attribute("logits[0,3,7]", against="logits[0,3,11]")
    adds_up(causes)
    kinds = {cause.kind for cause in causes.causes}
    assert "embedding" in kinds and "fixed" not in kinds
    logits = trace["logits[0,3]"].double()
    assert causes.value == float(logits[7] - logits[11])
    assert any("rsqrt" in note or "norm" in note for note in causes.notes)


@pytest.mark.parametrize("name", ["Llama", "GptOss", "Mamba"])
def test_float32_adds_up_too(name):
    model, inputs = transformers_model(name)
    adds_up(ModuleTrace(model.eval(), (), inputs).attribute("logits[0,3,7]"), 1e-5)


class Fixing(TorchFunctionMode):
    """PyTorch's own gradient of a Llama in which nothing passes through what is fixed."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        return result.detach() if name in ("softmax", "rsqrt", "silu") else result


def test_it_is_the_gradient_of_the_model_with_these_fixed():
    model, _ = transformers_model("Llama")
    model = deep(model)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    table = model.get_input_embeddings()(IDS).detach().requires_grad_()  # type: ignore[operator]
    with Fixing():
        logit = model(inputs_embeds=table).logits[0, 5, 7]
    (gradient,) = torch.autograd.grad(logit, table)
    trace = ModuleTrace(model, (), {"input_ids": IDS})
    causes = trace.attribute("logits[0,5,7]", "model.embed_tokens[0,token]")
    shares = (gradient * table).sum(-1)[0]
    # norms of transformers compute in float32
    for token in range(6):
        expected = shares[token].item()
        assert causes[f"model.embed_tokens[0,{token}]"] == pytest.approx(expected, abs=1e-6)
    assert len(causes.causes) == 6  # no token after it, and no bias
    assert_close(causes.gradients["model.embed_tokens[0,2]"], gradient[0, 2], rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------- our own models

OWN = {
    **{
        name: config
        for name, config in tiny.ALL.items()
        if name not in {*tiny.RECURRENT, "reader", "pooled"}
    },
    "scaled": tiny.decoder(
        tiny.block(), position=c.Learned(tiny.CONTEXT), head=c.Head(scale=0.5, bias=True)
    ),
    "narrow": c.Encoder(
        tiny.DIM,
        tiny.CONTEXT,
        c.Embed(tiny.VOCAB, segments=2, dim=24),
        tiny.bert().encoder,
        c.Head(tied=False, transform="tanh"),
        tiny.WIDE,
    ),
}


def readers(trace):
    """The operations that read each weight, by its address."""
    reading: dict[str, list[Operation]] = {}
    for operation in trace.operations:
        for value in operation.inputs:
            reading.setdefault(value.address, []).append(operation)
    return reading


def expert_rows(trace, path):
    """The hidden rows (pairs, F) of a mixture, sorted by expert."""
    matrices = trace.value(f"{path}.y").operation
    assert matrices is not None
    chunk = matrices.inputs[0].operation
    assert chunk is not None and chunk.inputs[0].operation is not None
    return chunk.inputs[0].operation.inputs[0]


def address_of(part, model, trace, at):
    """The recorded address of a head, an MLP or an expert that ``sight.attribute`` names."""
    path, _, index = part.address.partition("[")
    above = path.rpartition(".")[0]
    reading = readers(trace)
    if isinstance(model.config, c.Encoder) and isinstance(model.config.encoder, LoopedStack):
        # one weight for all blocks, which read it one after another
        index = int(above.split(".")[2])
        first = above.replace(f".{index}.", ".0.")
        reading |= {name.replace(first, above): x[index:] for name, x in reading.items()}
    if "head" in part.kind:
        value = reading[f"{above}.out.weight"][0].inputs[0]
        size = value.shape[-1] // model.get_submodule(above).heads
        return f"{value.address}[0,{at},{part.index * size}:{(part.index + 1) * size}]"
    if part.kind == "mixer" and f"{above}.down.weight" in reading:  # gated after it
        gated = f"{above}.r.weight" in reading
        after = trace.operations.index(reading[f"{above}.down.weight"][0]) + gated
        return f"{trace.operations[after].outputs[0].address}[0,{at}]"
    if part.kind == "mixer":
        return f"{reading[f'{above}.out_proj.weight'][0].outputs[0].address}[0,{at}]"
    if part.kind == "expert":
        slot = int(index.rstrip("]").partition(",")[2])
        order, tokens = trace[f"{above}.order"].tolist(), trace["tokens"].shape[1]
        return f"{expert_rows(trace, above).address}[{order.index(slot * tokens + at)}]"
    return f"{reading[f'{above}.down.weight'][0].inputs[0].address}[0,{at}]"


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("against", [None, 11])
def test_they_are_the_parts_of_direct_logit_attribution(name, against):
    model = deep(tiny.model(OWN[name]))
    inputs = inputs_of(model)
    right = attribute(model, None, **inputs, token=7, against=against, position=4)
    trace = ModuleTrace(model, tuple(inputs.values()))
    writers = {
        part.address: address_of(part, model, trace, 4)
        for part in right.parts
        if part.kind in ("head", "cross head", "mlp", "shared expert", "expert", "mixer")
    }
    rival = None if against is None else f"head.proj[0,4,{against}]"
    causes = trace.attribute("head.proj[0,4,7]", list(writers.values()), rival)
    adds_up(causes, 1e-9)
    assert causes.value == pytest.approx(right.logit, abs=1e-9)
    values = {cause.address: cause.value for cause in causes.causes}
    biases: dict[str, float] = {}
    for part in right.parts:
        if part.address in writers:
            actual = values.pop(writers[part.address], 0.0)
            assert actual == pytest.approx(part.value, abs=1e-9), part
        elif part.kind == "bias":
            bias = part.address.partition("[")[0]
            biases[bias] = biases.get(bias, 0.0) + part.value
    for bias, value in biases.items():
        assert values.pop(bias, 0.0) == pytest.approx(value, abs=1e-9), bias
    tables = [part.value for part in right.parts if part.address.startswith("embed.")]
    assert sorted(values.values()) == pytest.approx(sorted(tables), abs=1e-9)


@pytest.mark.parametrize("name", ["bert", "pooled"])
def test_a_label_of_a_classifier(name):
    model = deep(tiny.model(name))
    inputs = inputs_of(model)
    right = attribute(model, None, **inputs, token=1, against=0, of="label")
    trace = ModuleTrace(model, tuple(inputs.values()))
    writers: dict[str, float] = {}
    for part in right.parts:
        if part.kind in ("head", "mlp"):
            address = address_of(part, model, trace, 0).replace("[0,0", "[0,:")
            writers[address] = writers.get(address, 0.0) + part.value
    causes = trace.attribute("pool[0,1]", list(writers), "pool[0,0]")
    adds_up(causes, 1e-9)
    assert causes.value == pytest.approx(right.logit, abs=1e-9)
    for address, value in writers.items():
        assert causes[address] == pytest.approx(value, abs=1e-9)


def test_what_an_edit_did_to_the_stream_is_a_cause():
    model = deep(tiny.model("llama"))
    trace = ModuleTrace(model, (tiny.tokens(1, 9),))
    edited = trace.edit({"decoder.blocks.0[0,4]": lambda x: 0.5 * x + 1})
    causes = edited.attribute("logits[0,4,7]", "decoder.blocks.*.ffn[0,4]")
    adds_up(causes, 1e-9)
    assert causes.value != pytest.approx(float(trace["logits[0,4,7]"]), abs=1e-3)
    (edit,) = [cause for cause in causes.causes if cause.kind == "edit"]
    x = trace["decoder.blocks.0[0,4]"]
    endpoints = ["decoder.blocks.1.ffn[0,4]", "decoder.blocks.0[0,4]"]
    reads = edited.attribute("logits[0,4,7]", endpoints)
    gradient = reads.gradients["decoder.blocks.0[0,4]"]
    assert edit.value == pytest.approx(float(gradient @ (1 - 0.5 * x)), abs=1e-9)


# ---------------------------------------------------------------------------- somebody's own modules


class Oddities(nn.Module):
    """Functions that are linear, that hold a scale, that have a gate, and some nobody knows."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.batch, self.group = nn.BatchNorm1d(6), nn.GroupNorm(2, 6)
        self.gain, self.memory = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(4, 6))
        self.out = nn.Linear(6, 3)

    def forward(self, x):  # (1, T, 6)
        y = self.group(self.batch(self.conv(x.mT))).mT
        y = y + F.glu(torch.cat([y, x], -1)) + 0.3
        y = y + F.normalize(y, dim=-1) * self.gain + F.relu(y).square() + y.pow(3) / 9
        y = y + torch.maximum(x, y) - y.clamp(-0.1, 0.2) + y * torch.tanh(F.softplus(y))
        y = y + (y @ self.memory.T).softmax(-1) @ self.memory
        y = y + torch.cumsum(y, 1) / 7 + torch.sigmoid(y) + y * x + torch.cumprod(y.sigmoid(), 1)
        y[:, 1:] += y[:, :-1].clone()
        y = torch.where(x > 0, y, 2.0) + y.std(-1, keepdim=True)
        return F.log_softmax(self.out(y), -1)


def odd():
    torch.manual_seed(0)
    return ModuleTrace(deep(Oddities()), (torch.randn(1, 5, 6).double(),))


def test_a_module_of_somebody_s_own_splits():
    causes = odd().attribute("output[0,4,1]")
    adds_up(causes, 1e-12)
    kinds = {cause.address: cause.kind for cause in causes.causes}
    assert kinds["x"] == "input" and kinds["out.bias"] == "weight"
    assert {"fixed", "number", "input", "weight"} == set(kinds.values())
    assert {name for name, kind in kinds.items() if kind == "weight"} == {
        "conv.bias",
        "batch.bias",
        "group.bias",
        "out.bias",
    }
    text = str(causes)
    for function in ("softmax", "square", "pow", "group_norm", "normalize", "glu", "log_softmax"):
        assert f"{function} (" in text, text
    assert "half is each one's: mul (1)" in text


def test_by_place_the_shares_are_the_whole():
    trace = odd()
    total = trace.attribute("output[0,4,1]", "x")
    places = trace.attribute("output[0,4,1]", "x[0,place,channel]")
    assert places["x"] == pytest.approx(total["x"], abs=1e-12)
    assert sum(cause.kind == "chosen" for cause in places.causes) == 30
    assert_close(total.gradients["x"][0, 2, 3], places.gradients["x[0,2,3]"], rtol=0, atol=1e-12)
    assert json.loads(json.dumps(places.to_dict()))["sum"] == places.sum


class Beside(nn.Module):
    """Shows its numbers in another order than it goes on with."""

    def forward(self, x):
        rows = x.square()
        self.shown = rows.flip(0).T
        return rows.sum()


def test_numbers_beside_the_way_are_found_where_they_were_computed():
    trace = ModuleTrace(Beside(), (torch.arange(6.0).reshape(2, 3),))
    causes = trace.attribute("output", "shown[column,0]")
    assert [cause.value for cause in causes.causes[1:]] == [9.0, 16.0, 25.0]
    adds_up(causes)
    assert causes["x"] == 5  # of the other row


# --------------------------------------------------------------------------------- edges and patches


@pytest.fixture(scope="module")
def pair():
    """Two passes of a model that differ in one token."""
    model, _ = transformers_model("Llama")
    model = deep(model)
    model.set_attn_implementation("eager")
    changed = IDS.clone()
    changed[0, 2] = 40
    clean, corrupted = (ModuleTrace(model, (), {"input_ids": ids}) for ids in (IDS, changed))
    return clean, corrupted


HEADS = "model.layers.*.self_attn.attn_output.matmul[0,head]"
PARTS = ["model.embed_tokens", "model.layers.*.self_attn", "model.layers.*.mlp"]


def test_edges_add_up_to_the_reader(pair):
    trace, _ = pair
    for reader in ("model.layers.1.self_attn.q_proj[0,7,3]", "model.layers.1.mlp[0,7,5]"):
        edges = trace.edges(reader, PARTS)
        adds_up(edges)
        assert [cause.kind for cause in edges.causes].count("chosen") == len(edges.causes) > 2
    logit = trace.attribute("logits[0,7,9]", PARTS)
    reader = "model.layers.1.mlp"
    edges = trace.edges(reader, PARTS, logit.gradients[reader])
    adds_up(edges)
    assert edges.sum == pytest.approx(logit[reader], rel=1e-6)
    assert reader not in {cause.address for cause in edges.causes}


def test_the_gradient_expects_what_a_patch_does(pair):
    trace, corrupted = pair
    patches = trace.compare_patches(corrupted, "logits[0,7,9]", HEADS, "logits[0,7,4]")
    assert len(patches.patches) == 8
    assert patches.patched - patches.value == pytest.approx(
        sum(
            sign * float(run[f"logits[0,7,{token}]"])
            for sign, run, token in (
                (1, corrupted, 9),
                (-1, corrupted, 4),
                (-1, trace, 9),
                (1, trace, 4),
            )
        ),
        abs=1e-6,
    )
    first = patches.patches[0]
    edited = trace.edit({first.address: lambda _: corrupted[first.address]})
    difference = edited["logits[0,7,9]"] - edited["logits[0,7,4]"]
    assert first.exact == pytest.approx(float(difference) - patches.value, abs=1e-7)
    assert patches.correlation > 0.8
    assert "Correlation of their ranks: 0." in str(patches) or "1.000" in str(patches)


def test_the_expectation_is_the_models_own_gradient(
    pair,
):
    trace, corrupted = pair
    table = trace["model.embed_tokens"].clone().requires_grad_()
    logit = trace.module(inputs_embeds=table).logits[0, 7, 9]
    (gradient,) = torch.autograd.grad(logit, table)
    patches = trace.compare_patches(corrupted, "logits[0,7,9]", "model.embed_tokens[0,token]")
    expected = (gradient * (corrupted["model.embed_tokens"] - trace["model.embed_tokens"])).sum(-1)[
        0
    ]
    for token, patch in enumerate(patches.patches):
        assert patch.expected == pytest.approx(expected[token].item(), abs=1e-7)


class Diamond(nn.Module):
    """Three parts, of which each reads those before it."""

    def forward(self, x):
        first = x.square()
        second = first.sin() + x
        third = first * second
        return third + second


def test_a_path_is_patched_alone():
    clean, corrupted = (ModuleTrace(Diamond(), (torch.tensor([x]),)) for x in (2.0, 3.0))
    direct = clean.patch_path(corrupted, "first", "third", "output[0]", "second")
    second = math.sin(4.0) + 2
    assert direct == pytest.approx((9 - 4) * second, rel=1e-6)
    by_both = clean.patch_path(corrupted, "first", "third", "output[0]")
    assert by_both == pytest.approx(9 * (math.sin(9.0) + 2) - 4 * second, rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.attribute("logits[0,3]"), "not one number"),
        (lambda t: t.attribute("logits[0,3,7]", "model.*.nothing"), "No address matches"),
        (lambda t: t.attribute("logits[0,3,7]", "model.nothing"), "Nothing has the address"),
        (
            lambda t: t.attribute("logits[0,3,7]", "model.layers.0[0,3,1,1]"),
            "too many places|give 3",
        ),
        (lambda t: t.edges("model.layers.1.mlp", PARTS), "not one number"),
        (lambda t: t.edges("model.layers.1.mlp", PARTS, torch.ones(3)), "the direction is"),
    ],
)
def test_mistakes_are_sentences(call, message, pair):
    with mistake(message):
        call(pair[0])


def test_two_passes_of_other_lengths(pair):
    shorter = ModuleTrace(pair[0].module, (), {"input_ids": IDS[:, :5]})
    with mistake("of the same shape"):
        pair[0].compare_patches(shorter, "logits[0,3,7]", "model.embed_tokens")


def test_the_table_shows_that_it_adds_up(pair):
    causes = pair[0].attribute("logits[0,7,9]", [HEADS, "model.layers.*.mlp"])
    text = str(causes)
    assert "the model's own" in text and "difference" in text
    assert "Fixed at the value that it had: rsqrt" in text
    unmet = pair[0].attribute("logits[0,3,9]", "model.layers.1.self_attn.attn_weights")
    assert "Nothing of it is carried to model.layers.1.self_attn.attn_weights." in unmet.notes
