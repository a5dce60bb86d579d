"""Blocks on several processes, one after the other: losses, logits and gradients of every decoder
are one process's."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch

from axes import FAMILIES, LENGTHS, along, check_near, differences, gradients, row, twins
from glassformer import config as c
from glassformer.core.config import run
from glassformer.core.errors import UserError
from glassformer.core.training.batches import Batch
from glassformer.core.training.causal import Causal
from glassformer.runs import processes as around
from glassformer.scale.layout import stage_blocks
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.pipeline import check
from glassformer.scale.shard import cuts_of, shard
from glassformer.scale.shared_batches import SharedMicroBatches, in_order, one_forward_one_backward
from glassformer.tasks.objectives import Contrast
from mistakes import mistake
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
    """Differences of losses, logits and gradients after four micro-batches, for each family."""
    axes = along(mesh, "pipeline")
    answers = {}
    for name in names:
        cfg = FAMILIES[name]
        cfg = replace(cfg, decoder=replace(cfg.decoder, depth=depth or cfg.decoder.depth))
        alone, staged = twins(cfg)
        shard(staged, axes)
        batches = []
        for length in range(LENGTHS[0], LENGTHS[0] + 4):
            args, saved = row(cfg, "packed", length)
            targets = tokens(2, length, seed=9).where(saved["pos"] > 2, -1)
            batches.append(Batch(args, targets, saved["pos"], saved["document_ids"]))
        expected = [Causal().loss(alone, batch, 0.1) for batch in batches]
        for loss in expected:
            loss.total.backward()
        staged.stage.lend_table(staged)
        pieces = SharedMicroBatches(batches, lambda place: None, staged, [1] * len(batches), axes)
        compute = functools.partial(Causal().loss, staged, smoothing=0.1)
        losses = in_order(one_forward_one_backward(staged, pieces, compute), axes)
        staged.stage.settle(staged)
        grads = {path: grad.full_tensor() for path, grad in gradients(staged).items()}
        right = gradients(alone)
        cuts = cuts_of(staged)
        assert grads.keys() == {path for path, cut in cuts.items() if cut.high} & right.keys(), name
        with torch.no_grad():
            logits, right_logits = (model(batches[0].tokens).logits for model in (staged, alone))
        answers[name] = [
            *(
                abs(float(got.total / loss.total.detach()) - 1)
                for got, loss in zip(losses, expected, strict=True)
            ),
            *differences((logits, grads), (right_logits, {path: right[path] for path in grads})),
        ]
    return answers


def near(processes, names, depth):
    check_near(processes.call(compare, names=names, depth=depth), names)


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
            assert [block for piece in pieces for block in piece] == list(range(depth))
            assert len(pieces) == stages
            sizes = [len(piece) for piece in pieces]
            assert max(sizes) - min(sizes) <= 1
            assert sizes[0] == max(sizes)
            assert min(sizes) > 0


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
        with mistake(sentence):
            check(cfg, stages)
    contrast = run.Train(objective=Contrast())
    axes = Mesh(Parallel(data=1, pipeline=2))
    with mistake("A pipeline learns next tokens"):
        around.check(contrast, DECODERS["llama"], axes)
    with mistake("2 stands alone so far and there are 4 processes; start 2"):
        around.check(run.Train(), DECODERS["llama"], Mesh(Parallel(data=2, pipeline=2)))
    with mistake("Only a decoder made of blocks"):
        check(next(cfg for cfg in ALL.values() if cfg.recurrent), 2)
