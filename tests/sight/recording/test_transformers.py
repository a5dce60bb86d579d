"""Models of the library ``transformers``, which no part of ours knows: every number opens."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tiny_transformers
import walked
from glassformer.sight.recording import ModuleTrace
from glassformer.sight.recording.operations import tensors_of

pytest.importorskip("transformers")

QUICK = (
    "Llama",
    "GPT2",
    "Mixtral",
    "Gemma3",
    "DeepseekV3",
    "GptOss",
    "Mamba2",
    "DebertaV2",
    "T5",
    "ViT",
)
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in tiny_transformers.NAMES]


def passes(name):
    """A recorded pass with each implementation of attention."""
    model, inputs = tiny_transformers.build(name), tiny_transformers.inputs(name)
    traces = []
    for engine in ("eager", "sdpa"):
        if engine == "eager" or model._supports_sdpa:
            model.set_attn_implementation(engine)  # type: ignore[operator]
            traces.append((engine, ModuleTrace(model, (), inputs)))
            assert traces[-1][1].check() == 0.0  # while this engine is chosen
    return traces


def opens(name, cells):
    for engine, trace in passes(name):
        wrong = walked.walk(trace, cells)
        assert not wrong, (engine, len(wrong), wrong[:5])


@pytest.mark.parametrize("name", QUICK)
def test_every_number_opens_to_where_the_arithmetic_begins(name):
    opens(name, 60)


@pytest.mark.parametrize("name", SLOW)
def test_every_number_of_any_class_opens(name):
    opens(name, 500)


LAYERS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.Conv1d, nn.Conv2d)


def hooked(model, path, inputs, change):
    """What the model returns when a hook written by hand changes what one layer gives."""
    layer = model.get_submodule(path)
    handle = layer.register_forward_hook(lambda module, args, output: change(output))
    with torch.no_grad():
        result = model(**inputs)
    handle.remove()
    return tensors_of(result)


def edits_equal_hooks(name):
    model, inputs = tiny_transformers.build(name), tiny_transformers.inputs(name)
    with torch.no_grad():
        model(**inputs)  # BigBird puts other layers in place at its first short text
    trace = ModuleTrace(model, (), inputs)
    layers = [
        path
        for path, layer in model.named_modules()
        if type(layer) in LAYERS and path in trace.aliases and f"{path}:2" not in trace.aliases
    ]
    changes = (lambda x: 1.5 * x, lambda x: x.flip(-1), torch.zeros_like)
    for path, change in zip(random.Random(0).sample(layers, 3), changes, strict=True):
        edited = trace.edit({path: change})
        expected = hooked(model, path, inputs, change)
        for actual, reference in zip(tensors_of(edited.output), expected, strict=True):
            assert_close(actual, reference, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", QUICK)
def test_an_edit_is_a_hook_written_by_hand(name):
    edits_equal_hooks(name)


@pytest.mark.parametrize("name", SLOW)
def test_an_edit_of_any_class_is_a_hook(name):
    edits_equal_hooks(name)
