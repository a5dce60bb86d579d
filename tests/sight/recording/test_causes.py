"""The causes of a number add up to it, in any module, and are those that ``sight.attribute`` finds in
our own models."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import tiny
from glassformer import config as c
from glassformer.core.nn import Model
from glassformer.sight import attribute
from glassformer.sight.recording import ModuleTrace
from glassformer.sight.recording.causes import Causes
from glassformer.sight.recording.recorder import Operation, Value
from tiny import inputs_of

IDS = torch.tensor([[5, 3, 8, 61, 7, 22, 9, 4]])


def deep(model: Any) -> Any:
    """In float64, no bias zero and no gain one."""
    model = model.eval().double()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model


def adds_up(causes: Causes, within: float = 1e-6) -> None:
    assert causes.sum == math.fsum(cause.value for cause in causes.causes)
    size = max(abs(causes.value), max(abs(cause.value) for cause in causes.causes))
    assert causes.difference <= within * size


# ----------------------------------------------------------------------- models of ``transformers``

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
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


def other(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    transformers = pytest.importorskip("transformers")
    kind, sizes = OTHERS[name]
    config = getattr(transformers, f"{name}Config")(**SIZES | sizes)
    torch.manual_seed(0)
    inputs = {"input_ids": IDS, **({"decoder_input_ids": IDS[:, :5]} if name == "T5" else {})}
    return getattr(transformers, kind)._from_config(config, experts_implementation="eager"), inputs


@pytest.mark.parametrize("name", OTHERS)
def test_a_logit_of_any_model_splits(name: str) -> None:
    model, inputs = other(name)
    trace = ModuleTrace(deep(model), (), inputs)
    causes = trace.attribute("logits[0,3,7]", against="logits[0,3,11]")
    adds_up(causes)
    kinds = {cause.kind for cause in causes.causes}
    assert "embedding" in kinds and "fixed" not in kinds
    logits = trace["logits[0,3]"].double()
    assert causes.value == float(logits[7] - logits[11])
    assert any("rsqrt" in note or "norm" in note for note in causes.notes)


@pytest.mark.parametrize("name", ["Llama", "GptOss", "Mamba"])
def test_float32_adds_up_too(name: str) -> None:
    model, inputs = other(name)
    adds_up(ModuleTrace(model.eval(), (), inputs).attribute("logits[0,3,7]"), 1e-5)


class Fixing(TorchFunctionMode):
    """PyTorch's own gradient of a Llama in which nothing passes through what is fixed."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        return result.detach() if name in ("softmax", "rsqrt", "silu") else result


def test_it_is_the_gradient_of_the_model_with_these_fixed() -> None:
    model, _ = other("Llama")
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
    torch.testing.assert_close(
        causes.gradients["model.embed_tokens[0,2]"], gradient[0, 2], rtol=1e-5, atol=1e-6
    )


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


def readers(trace: ModuleTrace) -> dict[str, list[Operation]]:
    """The operations that read each weight, by its address."""
    reading: dict[str, list[Operation]] = {}
    for operation in trace.operations:
        for value in operation.inputs:
            reading.setdefault(value.address, []).append(operation)
    return reading


def expert_rows(trace: ModuleTrace, path: str) -> Value:
    """The hidden rows (pairs, F) of a mixture, sorted by expert."""
    matrices = trace.value(f"{path}.y").operation
    assert matrices is not None
    chunk = matrices.inputs[0].operation
    assert chunk is not None and chunk.inputs[0].operation is not None
    return chunk.inputs[0].operation.inputs[0]


def address_of(part: Any, model: Model, trace: ModuleTrace, at: int) -> str:
    """The recorded address of a head, an MLP or an expert that ``sight.attribute`` names."""
    path, _, index = part.address.partition("[")
    above = path.rpartition(".")[0]
    reading = readers(trace)
    if "head" in part.kind:
        value = reading[f"{above}.out.weight"][0].inputs[0]
        size = value.shape[-1] // model.get_submodule(above).heads
        return f"{value.address}[0,{at},{part.index * size}:{(part.index + 1) * size}]"
    if part.kind == "expert":
        slot = int(index.rstrip("]").partition(",")[2])
        order, tokens = trace[f"{above}.order"].tolist(), trace["tokens"].shape[1]
        return f"{expert_rows(trace, above).address}[{order.index(slot * tokens + at)}]"
    return f"{reading[f'{above}.down.weight'][0].inputs[0].address}[0,{at}]"


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("against", [None, 11])
def test_they_are_the_parts_of_direct_logit_attribution(name: str, against: int | None) -> None:
    model = deep(tiny.model(OWN[name]))
    inputs = inputs_of(model)
    right = attribute(model, None, **inputs, token=7, against=against, position=4)
    trace = ModuleTrace(model, tuple(inputs.values()))
    writers = {
        part.address: address_of(part, model, trace, 4)
        for part in right.parts
        if part.kind in ("head", "cross head", "mlp", "shared expert", "expert")
    }
    rival = None if against is None else f"head.proj[0,4,{against}]"
    causes = trace.attribute("head.proj[0,4,7]", list(writers.values()), rival)
    adds_up(causes, 1e-9)
    assert causes.value == pytest.approx(right.logit, abs=1e-9)
    values = {cause.address: cause.value for cause in causes.causes}
    biases: dict[str, float] = {}
    for part in right.parts:
        if part.address in writers:
            found = values.pop(writers[part.address], 0.0)
            assert found == pytest.approx(part.value, abs=1e-9), part
        elif part.kind == "bias":
            bias = part.address.partition("[")[0]
            biases[bias] = biases.get(bias, 0.0) + part.value
    for bias, value in biases.items():
        assert values.pop(bias, 0.0) == pytest.approx(value, abs=1e-9), bias
    tables = [part.value for part in right.parts if part.address.startswith("embed.")]
    assert sorted(values.values()) == pytest.approx(sorted(tables), abs=1e-9)
