"""Blocks on several processes, one after the other: losses, logits and gradients of every decoder
are one process's."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from axes import FAMILIES, LENGTHS, row, worst
from glassformer import config as c
from glassformer.core.config import run
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.families import find
from glassformer.runs import processes as around
from glassformer.scale.cost import cost
from glassformer.scale.layout import Layout, stage_blocks
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.pipeline import check
from glassformer.scale.shard import cuts_of, shard
from glassformer.scale.shared import SharedPieces, in_order, one_forward_one_backward
from glassformer.tasks.objectives import Contrast
from tiny import ALL, DECODERS, tokens


def fits(cfg):
    try:
        check(cfg, 2)
    except UserError:
        return False
    return True


SOME = ["gpt2", "llama", "mixtral", "phi2", "gemma2", "glass"]
FIT = [name for name, cfg in FAMILIES.items() if fits(cfg)]


def compare(mesh, names, depth):
    """The largest differences of losses, logits and gradients after four pieces, for each
    family."""
    axes, result = (
        Mesh(Parallel(data=1, pipeline=mesh.size), mesh.rank, mesh.device, mesh.store),
        {},
    )
    for name in names:
        cfg = FAMILIES[name]
        cfg = replace(cfg, decoder=replace(cfg.decoder, depth=depth or cfg.decoder.depth))
        item, staged = (build_model(cfg, seed=1, dtype=torch.float64).eval() for _ in range(2))
        shard(staged, axes)
        batches = []
        for number in range(4):  # each of another length
            args, saved = row(cfg, "packed", LENGTHS[0] + number)
            targets = tokens(2, LENGTHS[0] + number, seed=9).where(saved["pos"] > 2, -1)
            batches.append(Batch(args, targets, saved["pos"], saved["document_ids"]))
        expected = [Causal().loss(item, batch, 0.1) for batch in batches]
        for loss in expected:
            loss.total.backward()
        staged.stage.lend_table(staged)
        pieces = SharedPieces(batches, lambda place: None, staged, [1] * len(batches), axes)
        losses = one_forward_one_backward(
            staged, pieces, functools.partial(Causal().loss, staged, smoothing=0.1)
        )
        staged.stage.settle(staged)
        totals = [
            (float(got.total), float(loss.total.detach()))
            for got, loss in zip(in_order(losses, axes), expected, strict=True)
        ]
        grads = {
            path: weight.grad for path, weight in item.named_parameters() if weight.grad is not None
        }
        second_pieces = {
            p: weight.grad.full_tensor()
            for p, weight in staged.named_parameters()
            if weight.grad is not None
        }
        assert (
            second_pieces.keys()
            == {path for path, cut in cuts_of(staged).items() if cut.high} & grads.keys()
        ), name
        with torch.no_grad():
            logits, output = (model(batches[0].tokens).logits for model in (staged, item))
        far = [abs(got - loss) / abs(loss) for got, loss in totals]
        result[name] = [
            *far,
            float((logits - output).abs().max()),
            worst(second_pieces, {path: grads[path] for path in second_pieces}),
        ]
    return result


def near(processes, names, depth):
    for answer in processes.call(compare, names=names, depth=depth):
        assert len(answer) == len(names) and not {
            n: far for n, far in answer.items() if not max(far) < 1e-12
        }, answer


def test_some_decoders_on_two_stages(two):
    near(two, SOME, None)


@pytest.mark.slow
def test_every_decoder_on_two_stages(two):
    assert len(FIT) > 12
    near(two, [name for name in FIT if name not in SOME], None)


@pytest.mark.slow
def test_four_stages_of_five_and_six_blocks(four):
    near(four, ["gpt2", "llama", "mixtral", "glass"], 5)
    near(four, ["nanomoe", "gemma2"], 6)


def test_blocks_are_shared_out_in_order_and_the_first_stages_have_more():
    for depth in range(1, 9):
        for stages in range(1, depth + 1):
            pieces = stage_blocks(depth, stages)
            assert [block for piece in pieces for block in piece] == list(range(depth)) and len(
                pieces
            ) == stages
            sizes = [len(piece) for piece in pieces]
            assert max(sizes) - min(sizes) <= 1 and sizes[0] == max(sizes) and min(sizes) > 0


def test_what_does_not_fit_is_refused_in_a_sentence():
    wrong = {
        "parallel.pipeline 3 is more stages than the 2 blocks of the decoder; give 2 at most": (
            DECODERS["llama"],
            3,
        ),
        "Only a decoder made of blocks": (ALL["bert"], 2),
        "Relative biases are one table": (DECODERS["relative"], 2),
        "ends in a head over tokens": (replace(DECODERS["llama"], pool=c.Pool()), 2),
    }
    for sentence, (cfg, stages) in wrong.items():
        with pytest.raises(UserError, match=sentence):
            check(cfg, stages)
    contrast, axes = run.Train(objective=Contrast()), Mesh(Parallel(data=1, pipeline=2))
    with pytest.raises(UserError, match="A pipeline learns next tokens"):
        around.check(contrast, DECODERS["llama"], axes)
    with pytest.raises(UserError, match="2 stands alone so far and there are 4 processes; start 2"):
        around.check(run.Train(), DECODERS["llama"], Mesh(Parallel(data=2, pipeline=2)))
    with pytest.raises(UserError, match="Only a decoder made of blocks"):
        check(next(cfg for cfg in ALL.values() if c.recurrent(cfg)), 2)


def parameter_counts(mesh, names):
    """Numbers that this process keeps of each model."""
    layout = Mesh(Parallel(data=1, pipeline=mesh.size), mesh.rank, mesh.device, mesh.store)
    result = {}
    for name in names:
        model = build_model(DECODERS[name], seed=0)
        shard(model, layout)
        result[name] = sum(weight.to_local().numel() for weight in model.parameters())
    return result


def test_the_formula_says_what_the_fullest_stage_keeps_and_what_travels(two):
    names = ["gpt2", "llama", "mixtral"]
    answers = two.call(parameter_counts, names=names)
    for name in names:
        result = cost(DECODERS[name], 2)
        layout = Layout(result, Parallel(data=1, pipeline=2), 4)
        assert layout.local_parameters == max(answer[name] for answer in answers)
        assert sum(answer[name] for answer in answers) == result.total
        stream, table = (
            2 * result.context * result.model.dim * 4,
            result.model.embed.vocab * result.model.dim * 4,
        )
        assert layout.traffic == 4 * stream + table * result.model.head.tied
    large = cost(find("llama/3-70b"), 1, 256)
    item, four = (Layout(large, Parallel(data=1, pipeline=stages), 8).memory for stages in (1, 4))
    assert four < item / 2
