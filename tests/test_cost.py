"""The cost of a config against published figures, against counting by hand, and against torch's own
counters."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from glassformer import config
from glassformer import families as recipes
from glassformer.core.config import run, serial
from glassformer.core.config.model import shapes
from glassformer.core.config.run import Muon
from glassformer.core.memory import available_memory, gibibytes
from glassformer.core.nn import build_model
from glassformer.core.training import train
from glassformer.core.training.batches import Batch
from glassformer.fast.training.execution import ExecutionSettings
from glassformer.scale.cost import cost
from tiny import ALL

PUBLISHED = {  # parameters, bytes of bf16 cache per token
    "llama/3-8b": (8_030_261_248, 128 * 1024),
    "llama/3-70b": (70_553_706_496, 320 * 1024),
    "llama/3-405b": (405_853_388_800, 504 * 1024),
    "llama/2-7b": (6_738_415_616, 512 * 1024),
    "llama/2-13b": (13_015_864_320, 800 * 1024),
    "llama/2-70b": (68_976_648_192, 320 * 1024),
    "llama/3.2-1b": (1_235_814_400, 32 * 1024),
    "llama/3.2-3b": (3_212_749_824, 112 * 1024),
    "gpt2/124m": (124_439_808, 36 * 1024),
    "gpt2/350m": (354_823_168, 96 * 1024),
    "gpt2/774m": (774_030_080, 180 * 1024),
    "gpt2/1.5b": (1_557_611_200, 300 * 1024),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    spent = cost(recipes.find(name))
    assert (spent.total, spent.cache_per_token("bf16")) == PUBLISHED[name]
    assert spent.active == spent.total


def test_the_largest_answers_at_once():
    start = time.perf_counter()
    rows = dict(cost(recipes.find("llama/3-405b")).table())
    assert time.perf_counter() - start < 2
    assert "weights to run, int8" in rows
    assert rows["parameters"] == "405,853,388,800"
    assert rows["cache per token, bf16"] == "504 KiB"
    assert rows["weights to run, bf16"] == "755.96 GiB"


@pytest.mark.parametrize("name", [*ALL, *recipes.names()])
def test_shapes_without_torch_are_those_of_the_modules(name):
    """The page that counts without torch names what is built, and nothing else."""
    model = ALL[name] if name in ALL else recipes.find(name)
    small = {f"{body}.depth": len(stack.pattern) for body, stack in model.stacks.items()}
    model = serial.change(model, small) if "/" in name else model
    built = {
        path: tuple(weight.shape)
        for path, weight in build_model(model, device="meta").named_parameters()
    }
    assert shapes(model) == built


WITHOUT_TORCH = """
import sys
from glassformer.cli import main
for line in ("recipes", "cost llama/3-8b", "cost t5/3b --json", "masks", "masks strided", "masks cross"):
    assert main(line.split()) == 0
    assert "torch" not in sys.modules, line
"""


def test_costs_recipes_and_masks_import_no_torch():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, capture_output=True)


def test_cost_takes_the_settings_of_train(terminal, tmp_path):
    deeper = cost(serial.change(recipes.find("glass/1m"), {"decoder.depth": 8}), 4, 32)
    for words in (
        "glass/1m --decoder.depth 8 --batch 4 --context 32",
        "--model.decoder.depth=8 --batch 4 glass/1m --context 32",
    ):
        assert terminal.json(f"cost {words}") == json.loads(json.dumps(deeper.to_dict()))
    path = tmp_path / "run.toml"
    path.write_text('[model]\nrecipe = "glass/1m"\n[data]\ntokenizer = "byte"\n')
    four, eight = (
        terminal.json(f"cost {path} --decoder.depth {depth} --train.batch 2")["parts"]["attention"]
        for depth in (4, 8)
    )
    assert eight == 2 * four
    for words, message in (
        ("glass/1m --bach 4", '--bach is not understood. Did you mean "batch"?'),
        ("glass/1m --decoder.depht 4", 'decoder has no setting "depht". Did you mean "depth"?'),
        ("glass/1m --decoder.depth", "--decoder.depth needs a value"),
        ("", "Give a recipe, a folder or a run file"),
    ):
        assert message in terminal.refused(f"cost {words}")


def test_a_run_file_costs_what_a_training_of_it_says(tmp_path, terminal):
    """A batch in micro-batches holds one's activations at a time, beside the gradient of those
    before."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nrecipe = "glass/200k"\n\n[data]\ntrain = "python-docs"\ntokenizer = "byte"\n'
    )
    pieces, single = (
        terminal.json(f"cost {path} {options}")
        for options in ("--train.batch 8 --train.accumulate 2", "--train.batch 4")
    )
    gradient = 4 * pieces["parameters"]
    for before, after in zip(
        single.pop("train_bytes").values(), pieces.pop("train_bytes").values(), strict=True
    ):
        assert after == before + gradient
    assert pieces == single
    assert pieces["batch"] == 4


MODELS = {
    "glass": recipes.find("glass/1m"),
    "gpt2": serial.change(recipes.find("gpt2/124m"), {"decoder.depth": 2, "dim": 96}),
    "llama": recipes.find("llama/stories260k"),
    "windowed": serial.change(
        recipes.find("llama/stories260k"),
        {"decoder.pattern.attention.mask": {"type": "Window", "size": 8}},
    ),
}


def tiny(name):
    return serial.change(MODELS[name], {"embed.vocab": 50})


@pytest.mark.parametrize("name", ["glass", "gpt2", "llama"])
def test_flops_are_those_torch_counts(name):
    """FlopCounterMode counts all T x T scores; ours counts the half that a causal mask leaves."""
    T = 64
    model = build_model(tiny(name))
    model.engine = "eager"
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, T, dtype=torch.long)).logits.sum().backward()
    spent = cost(tiny(name), batch=2, context=T)
    # what is masked, yet multiplied by eager
    everywhere = 3 * spent.attention_flops * (2 * T / (T + 1) - 1)
    counted = counter.get_total_flops() / (2 * T)
    assert counted == pytest.approx(spent.training_flops + everywhere, rel=1e-9)


@pytest.mark.parametrize("window", [1, 5, 16, 99])
@pytest.mark.parametrize("causal", [True, False])
def test_keys_seen_are_counted_with_windows(window, causal):
    T = 16
    spent = cost(tiny("llama"), context=T)
    total = sum(abs(q - k) < window and (k <= q or not causal) for q in range(T) for k in range(T))
    assert spent._keys(config.Attention(1, mask=config.Window(window)), causal) == pytest.approx(
        total / T
    )


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_is_as_large_as_said(name):
    T = 40
    spent = cost(tiny(name), batch=2, context=T)
    heads = {"glass": 4, "gpt2": 12, "llama": 4, "windowed": 4}[name]
    stack = spent.model.decoder
    width = stack.pattern[0].attention.width(spent.model.dim)
    rows = min(T, 8) if name == "windowed" else T
    assert spent.cache("fp32") == 2 * rows * stack.depth * 2 * heads * width * 4
    assert spent.cache_per_token("fp32") == stack.depth * 2 * heads * width * 4


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", ["glass", "gpt2", "llama"])
def test_activations_are_about_what_autograd_keeps(name, dropout):
    """Within 15 % of the bytes that the forward pass saves for the backward pass, counted by
    hooks."""
    B = 2
    T = 64
    cfg = serial.change(tiny(name), {"decoder.dropout": dropout})
    model = build_model(cfg).train()
    stored = {}
    weights = {weight.data_ptr() for weight in model.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage  # kept, so that no other may take its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model(torch.zeros(B, T, dtype=torch.long), logits="none").hidden
    total = sum(storage.nbytes() for storage in stored.values())
    hidden.sum().backward()
    assert cost(cfg, B, T).activations("fp32") == pytest.approx(total, rel=0.15)


def test_experts_are_counted_by_how_many_are_visited():
    expert = config.GatedMLP(24)
    dense = serial.change(tiny("llama"), {"decoder.pattern.feedforward": serial.to_dict(expert)})
    mixed = serial.change(
        tiny("llama"), {"decoder.pattern.feedforward": serial.to_dict(config.MoE(8, 2, expert))}
    )
    parameters = cost(dense).parameters["feedforward"]
    routers = 5 * 64 * 8
    spent = cost(mixed, context=16)
    assert spent.parameters["feedforward"] == 8 * parameters + routers
    assert spent.active == spent.total - 6 * parameters
    assert dict(spent.table())["active per token"] == f"{spent.active:,}"
    assert spent.forward_flops - cost(dense, context=16).forward_flops == 2 * (parameters + routers)


def test_encoder_decoders_count_both_stacks():
    attention = config.Attention(4)
    base = config.Block(attention, config.MLP(128), config.LayerNorm(), "post")
    crossing = config.Block(attention, config.MLP(128), config.LayerNorm(), "post", cross=attention)
    model = config.EncoderDecoder(
        32,
        16,
        config.Embed(50),
        config.Stack(2, (base,), causal=False),
        config.Stack(2, (crossing,)),
        config.Head(),
    )
    spent = cost(model)
    assert spent.parameters["attention"] == (2 + 4) * 4 * 32 * 32
    assert spent.cache_per_token("bf16") == 2 * 2 * 32 * 2
    assert spent.total == sum(weight.numel() for weight in build_model(model).parameters())
    assert any(
        name.startswith("training FLOPs per token on each side") for name, _ in spent.table()
    )


def test_memory_by_dtype():
    spent = cost(recipes.find("llama/3-8b"), batch=1, context=8192)
    fp32, bf16, int8, int4 = (spent.weights(dtype) for dtype in ("fp32", "bf16", "int8", "int4"))
    assert fp32 == 4 * spent.total
    assert bf16 == 2 * spent.total
    assert 0.5 * bf16 < int8 < 0.6 * bf16
    assert 0.25 * bf16 < int4 < 0.35 * bf16
    assert spent.run("bf16") == bf16 + 8192 * 128 * 1024
    assert spent.activations("fp32") == 2 * spent.activations("bf16")  # 8,192 keys: no pattern
    pass_begins = spent.activations("fp32") + spent.logits("fp32")
    assert spent.train("fp32") == 12 * spent.total + pass_begins
    assert spent.train("fp32", frozen=spent.total) == 4 * spent.total + pass_begins


def memory_peak(work):
    """The most bytes of tensors that were held while ``work`` ran, by PyTorch's own records."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        work()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(changes))


MIXTURE = {"decoder.pattern.feedforward": serial.to_dict(config.MoE(4, 2, config.GatedMLP(256)))}


@pytest.mark.parametrize(
    "name, changes, batch, context, settings",
    [
        ("llama", {}, 8, 256, {}),
        ("llama", {"dim": 256}, 1, 16, {}),  # where the step of the optimizer holds the most
        ("llama", MIXTURE, 4, 128, {}),
        ("llama", {}, 8, 256, {"dtype": "bfloat16"}),
        ("llama", {"dim": 256}, 1, 16, {"optimizer": Muon()}),
        ("llama", {"dim": 256}, 8, 64, {"accumulate": 4}),
        ("gpt2", {"decoder.dropout": 0.1}, 4, 256, {}),
        ("gpt2", {"embed.vocab": 8192}, 4, 64, {}),  # most of it are logits
    ],
)
def test_a_training_holds_what_was_said(name, changes, batch, context, settings):
    """Within 10 % of the bytes of all tensors at their peak, over two steps with the optimizer."""
    cfg = serial.change(tiny(name), {"decoder.depth": 2, "context": 256, **changes})
    ids = torch.randint(cfg.embed.vocab, (batch, context + 1))
    rows = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    options = run.Train(**{"dtype": "float32", "compile": "no", "batch": batch, **settings})
    execution = ExecutionSettings(options.dtype)

    def work():
        steps = train(build_model(cfg), itertools.repeat(rows), None, options, execution=execution)
        next(steps), next(steps)

    accumulate = options.accumulate
    estimate = dataclasses.replace(
        cost(cfg, batch // accumulate, context),
        muon=isinstance(options.optimizer, Muon),
        accumulated=accumulate > 1,
    )
    said = estimate.train("bf16" if options.dtype == "bfloat16" else "fp32")
    assert said == pytest.approx(memory_peak(work), rel=0.1)


def test_bytes_are_printed_plainly():
    assert [gibibytes(n) for n in (0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "0 bytes",
        "1,023 bytes",
        "1.50 KiB",
        "5.00 GiB",
        "3.00 TiB",
    ]


def test_free_memory_is_below_the_machines():
    free = available_memory()
    assert free is None or 0 < free < 1 << 50
