"""What processes hold and send, from the config."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from axes import along
from glassformer.core.nn import build_model
from glassformer.families import find
from glassformer.scale.cost import cost
from glassformer.scale.layout import EXPERT_WEIGHTS, Layout, micro_batches_for
from glassformer.scale.parallel import Parallel
from glassformer.scale.shard import shard
from many import Processes


def test_micro_batches_are_a_multiple_of_the_processes_that_share_rows():
    assert [micro_batches_for(n, Parallel(replicate=2).of(4)) for n in (1, 4, 5)] == [4, 4, 8]
    assert micro_batches_for(3, Parallel(tensor=4).of(4)) == 3


def test_a_shard_is_a_share_of_everything_and_one_process_receives_nothing():
    result = cost(tiny.DECODERS["llama"], 2)
    alone, four = (Layout(result, Parallel().of(n), 8, muon=True) for n in (1, 4))
    assert sum(alone.groups) == sum(four.groups) == result.total
    assert len(alone.groups) == 3
    assert alone.memory == replace(result, muon=True, accumulated=True).train()
    assert alone.traffic == 0 < four.traffic
    assert four.to_dict()["parameters"] == -(-result.total // 4)
    copies = Layout(result, Parallel(data=1, replicate=4), 8)
    assert copies.traffic == 2 * 2 * result.total * 4  # two rounds, a sum there and back
    exact, plain = (
        Layout(result, Parallel(data=4, exact=e), 8, "bf16").traffic for e in (True, False)
    )
    assert exact < plain  # gradients travel as they were computed


def test_cost_says_it_without_torch():
    code = (
        "import sys; from glassformer.cli import main; main(['cost', 'runs/demo.toml', "
        "'--processes', '4'])"
    )
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode and "received a step and process, bf16" in done.stdout, done.stderr


def parameter_counts(mesh, names, axis):
    """Numbers that this process keeps of each model."""
    message_counts = {}
    for name in names:
        model = build_model(tiny.DECODERS[name], seed=0)
        shard(model, along(mesh, axis))
        message_counts[name] = sum(weight.to_local().numel() for weight in model.parameters())
    return message_counts


@pytest.mark.parametrize(
    "axis, names",
    [
        ("tensor", ["gpt2", "llama", "mixtral", "alibi", "gemma2"]),
        ("expert", ["mixtral"]),
        ("pipeline", ["gpt2", "llama", "mixtral"]),
    ],
)
def test_the_inner_axes_leave_what_the_formula_says(two, axis, names):
    """Of a pipeline the fullest stage counts, and the stages are the whole."""
    answers = two.call(parameter_counts, names=names, axis=axis)
    for name in names:
        result = cost(tiny.DECODERS[name], 2)
        message_counts = [answer[name] for answer in answers]
        layout = Layout(result, Parallel(**{"data": 1, axis: 2}), 4)
        assert max(message_counts) == layout.local_parameters < result.total
        assert (
            sum(message_counts) == result.total
            if axis == "pipeline"
            else min(message_counts) == max(message_counts)
        )


def test_traffic_of_the_inner_axes():
    """Sums of activations there and back (Megatron-LM: two a block in each pass), tokens to experts
    and back."""
    result = cost(tiny.DECODERS["mixtral"], 2)
    blocks = result.model.decoder.depth
    stream = 2 * result.context * result.model.dim * 4
    tensor = Layout(result, Parallel(data=1, tensor=2), 3)
    assert tensor.traffic == 3 * 2 * (2 * blocks + 1) * stream
    assert tensor.memory < Layout(result, Parallel(data=1), 3).memory
    (mixture,) = {block.feedforward for block in result.model.decoder.pattern}
    expert = Layout(result, Parallel(data=1, expert=2), 4)
    remaining = result.total - sum(
        size for name, (_, size) in result.sizes.items() if EXPERT_WEIGHTS.search(name)
    )
    assert expert.traffic == 2 * (4 * blocks * mixture.top_k * stream // 2) + 2 * 2 * remaining * 4


def test_memory_beside_the_shard_is_what_a_blocks_backward_pass_holds():
    """Five copies of the largest block as computed and two in fp32, of what belongs to no block
    two; or the logits."""
    result = cost(tiny.DECODERS["llama"], 2)
    *blocks, remaining = (two := Layout(result, Parallel(data=2), 8)).groups
    stored = result.total * 16 // 2 + result.activations("fp32") + 2 * remaining * 4
    assert two.memory == stored + max(blocks) * (5 * 4 + 2 * 4)
    bf16 = Layout(result, Parallel(data=2), 8, "bf16")
    stored = result.total * 16 // 2 + result.activations("bf16") + 2 * remaining * 2
    assert bf16.memory == stored + max(blocks) * (5 * 2 + 2 * 4)


@pytest.mark.parametrize("tied", [True, False])
def test_traffic_of_a_pipeline(tied):
    """Activations from the stage before in each piece, gradients from the next; a tied table's from
    the last."""
    model = tiny.DECODERS["llama"]
    result = cost(replace(model, head=replace(model.head, tied=tied)), 2)
    table = model.embed.vocab * model.dim * 4
    stream = 2 * model.context * model.dim * 4
    assert Layout(result, Parallel(data=1, pipeline=2), 4).traffic == 4 * stream + tied * table
    large = cost(find("llama/3-70b"), 1, 256)
    alone, four = (Layout(large, Parallel(data=1, pipeline=stages), 8).memory for stages in (1, 4))
    assert four < alone / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["data 2", "replicate 2", "context 2", "tensor 2", "expert 2", "pipeline 2"]
)
def test_memory_is_what_processes_take(tmp_path, name):
    """The estimate for 25 M parameters is within a fifth of the memory that benchmarks/scale.py
    measures."""
    spec = importlib.util.spec_from_file_location(
        "scale", Path(__file__).parents[2] / "benchmarks" / "scale.py"
    )
    scale = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale)
    pool = Processes(2)
    for answer in pool.call(scale.memory, name=name, folder=str(tmp_path)):
        assert answer["measured"] == pytest.approx(answer["formula"], rel=0.2)
    pool.close()
