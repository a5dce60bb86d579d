"""Matrices in parts on several processes equal one process: logits, loss and gradients of every
family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from axes import FAMILIES, LENGTHS, result, row, worst
from glassformer import config as c
from glassformer.core.config.objective import LoRA
from glassformer.core.errors import UserError
from glassformer.core.nn import build_model, makers
from glassformer.core.training.loss import token_loss
from glassformer.formats import lora
from glassformer.formats.lora import tune
from glassformer.scale import tensor
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.shard import cuts_of, shard
from tiny import ALL, DECODERS, tokens

EVERY = {**FAMILIES, **{name: cfg for name, cfg in ALL.items() if c.recurrent(cfg)}}


def fits(cfg, pieces):
    try:
        tensor.check(cfg, pieces)
    except UserError:
        return False
    return True


def compare(mesh, names, scene, double):
    """The largest differences of logits, gradients, and the loss with its gradients, for each
    family."""
    group, actual_result = Mesh(Parallel(data=1, tensor=mesh.size), mesh.rank).group("tensor"), {}
    length = LENGTHS[0]
    weigh = (
        torch.randn(2, length, 60, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        / length
    )
    for name in names:
        cfg = EVERY[name]
        item, shared = (
            build_model(cfg, seed=1, dtype=torch.float64 if double else None).eval()
            for _ in range(2)
        )
        cuts = tensor.split_model(shared, group)
        args, saved = row(cfg, scene, length)
        individual = weigh[..., : cfg.embed.vocab].to(next(item.parameters()).dtype)
        expected, grads = result(item, args, saved, individual, args.numel())
        logits, pieces = result(shared, args, saved, individual, args.numel())
        assert pieces.keys() == grads.keys() and all(
            pieces[path].shape == cuts[path].of(grads[path]).shape for path in cuts
        )
        answers = [float((logits - expected).abs().max() / expected.abs().max())]
        answers.append(
            worst(
                pieces, {path: cuts[path].of(g) if path in cuts else g for path, g in grads.items()}
            )
        )
        full = {
            path: cuts[path].gather(x, group) if path in cuts else x for path, x in pieces.items()
        }
        assert all(full[path].shape == grads[path].shape for path in grads)
        answers.append(worst(full, grads))
        losses = []
        for model in (item, shared):
            model.zero_grad()
            out = model(args, **saved, logits="none")
            targets = tokens(2, length, seed=9).where(saved["pos"] > 2, -1)
            loss = token_loss(model, out, targets, 0.1)
            (loss.sum / loss.count).backward()
            losses.append(
                (loss.sum, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})
            )
        (expected, grads), (sum, pieces) = losses
        answers.append(abs(float((sum - expected) / expected)))
        answers.append(
            worst(
                pieces, {path: cuts[path].of(g) if path in cuts else g for path, g in grads.items()}
            )
        )
        actual_result[name] = answers
    return actual_result


def near(processes, scene, double, pieces):
    names = [name for name, cfg in EVERY.items() if fits(cfg, pieces)]
    bound = 1e-12 if double else 1e-5
    for answer in processes.call(compare, names=names, scene=scene, double=double):
        assert len(answer) == len(names) > 15
        assert not {name: far for name, far in answer.items() if not max(far) < bound}


def test_every_family_in_fp64(two):
    near(two, "packed", True, 2)


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("scene", ["plain", "padded", "prefix"])
def test_every_family(two, four, scene, double):
    near(two, scene, double, 2)
    near(four, scene, double, 4)


def dropped(mesh, names):
    """The largest differences of logits and gradients while a tenth of patterns and of the stream
    are dropped."""
    group, actual_result = Mesh(Parallel(data=1, tensor=mesh.size), mesh.rank).group("tensor"), {}
    for name in names:
        cfg = EVERY[name]
        cfg = replace(cfg, **{n: replace(stack, dropout=0.1) for n, stack in c.stacks(cfg).items()})
        item, shared = (build_model(cfg, seed=1, dtype=torch.float64) for _ in range(2))
        cuts = tensor.split_model(shared, group)
        args, saved = row(cfg, "packed", LENGTHS[1])
        torch.manual_seed(4)
        expected, grads = result(item, args, saved, 0.1, 1)
        torch.manual_seed(4)
        logits, pieces = result(shared, args, saved, 0.1, 1)
        grads = {path: cuts[path].of(g) if path in cuts else g for path, g in grads.items()}
        actual_result[name] = [
            float((logits - expected).abs().max() / expected.abs().max()),
            worst(pieces, grads),
        ]
    return actual_result


def test_each_head_drops_what_it_drops_on_one_process(two):
    """Causal blocks, groups, capped scores, biases, across: each by its engine."""
    names = ["gpt2", "llama", "gemma2", "t5", "alibi", "vaswani"]
    for answer in two.call(dropped, names=names):
        assert len(answer) == len(names) and not {
            n: far for n, far in answer.items() if not max(far) < 1e-12
        }, answer


def adapted(mesh, name):
    """The largest differences of logits and gradients with a change beside every layer that is cut,
    and a tenth of its input dropped."""
    group, cfg = Mesh(Parallel(data=1, tensor=mesh.size), mesh.rank).group("tensor"), EVERY[name]
    cfg, models = (
        replace(cfg, **{n: replace(stack, dropout=0.1) for n, stack in c.stacks(cfg).items()}),
        [],
    )
    for _ in range(2):
        models.append(build_model(cfg, seed=1, dtype=torch.float64))
        tune(
            models[-1],
            LoRA(rank=3, dropout=0.1, target_modules=("*.q", "*.v", "*.out", "*.up", "*.down")),
        )
        draw = torch.Generator().manual_seed(2)
        for layer in lora.adapted(models[-1]).values():
            layer.up.data.normal_(generator=draw)
    cuts = tensor.split_model(models[1], group)
    args, saved = row(cfg, "packed", LENGTHS[0])
    results = []
    for model in models:
        torch.manual_seed(4)
        results.append(result(model, args, saved, 0.1, 1))
    (expected, grads), (logits, pieces) = results
    grads = {path: cuts[path].of(g) if path in cuts else g for path, g in grads.items()}
    assert pieces.keys() == grads.keys() and all(path.endswith((".down", ".up")) for path in pieces)
    return [
        len(pieces),
        float((logits - expected).abs().max() / expected.abs().max()),
        worst(pieces, grads),
    ]


def test_adapters_are_cut_with_their_layers(two):
    for name in ("gpt2", "llama", "vaswani"):
        for many, *far in two.call(adapted, name=name):
            assert many >= 16 and max(far) < 1e-12, (name, far)


WHOLE = {
    "norms work on the whole residual stream": (c.LayerNorm, c.RMSNorm),
    "functions of positions": (c.NoPosition, c.Sinusoidal, c.Learned, c.Rotary),
    "frequencies": (
        c.LinearScaling,
        c.Llama3Scaling,
        c.YarnScaling,
        c.LongRopeScaling,
    ),
    "rules over positions": (
        *(
            c.Full,
            c.Causal,
            c.Prefix,
            c.Window,
            c.Every,
            c.Chunk,
            c.Tail,
        ),
        *(c.Strided, c.Fixed, c.Both, c.Either),
    ),
    "made of others": (
        c.Block,
        c.Stack,
        c.Decoder,
        c.Encoder,
        c.EncoderDecoder,
        c.Init,
    ),
    "a few rows": (c.Pool, c.TokenHead),
    "a step needs all of the state": (
        c.Recurrent,
        c.GRU,
        c.LSTM,
        c.Summary,
        c.Additive,
    ),
}
"""What every process has and computes as a whole, and why."""


def test_every_config_type_is_in_the_table_or_declared_whole():
    kinds = [kind for kinds in WHOLE.values() for kind in kinds]
    assert len(kinds) == len(set(kinds)) and not set(kinds) & tensor.TABLE.keys()
    assert {kind for kind in makers() if kind.__module__.startswith("glassformer.")} == set(
        kinds
    ) | tensor.TABLE.keys()


def own_part(mesh, output):
    """A feed-forward of a user's own: parameters here and in all, and the largest differences."""
    import own_parts

    new_result = own_parts.ReluSquaredModule
    new_result.columns, new_result.rows = (("up",), ("down",)) if output else ((), ())
    cfg = tiny.decoder(tiny.block(c.Attention(4), own_parts.ReluSquared(64)))
    group = Mesh(Parallel(data=1, tensor=mesh.size), mesh.rank).group("tensor")
    item, shared = (build_model(cfg, seed=1, dtype=torch.float64) for _ in range(2))
    cuts = tensor.split_model(shared, group)
    args, saved = row(cfg, "plain", LENGTHS[0])
    (expected, grads), (logits, pieces) = (
        result(model, args, saved, 0.1, 1) for model in (item, shared)
    )
    grads = {path: cuts[path].of(g) if path in cuts else g for path, g in grads.items()}
    ffn = sum(p.numel() for p in shared.decoder.blocks[0].ffn.parameters())
    return [ffn, float((logits - expected).abs().max()), worst(pieces, grads)]


def test_a_part_of_ones_own_is_whole_or_says_how_it_is_cut(two):
    full, cut = (2 * 64 * 32 + 64 + 32) * 1.0, 64 * 32 + 32 + 32
    for output, size in ((False, full), (True, cut)):
        assert all(
            item[0] == size and max(item[1:]) < 1e-12 for item in two.call(own_part, output=output)
        )


def with_data(mesh, names):
    """The largest difference of gradients where weights are cut and then sharded (FSDP2), rows
    shared out."""
    axes, actual_result = Mesh(Parallel(data=2, tensor=2), mesh.rank), {}
    for name in names:
        item, shared = (
            build_model(EVERY[name], seed=1, dtype=torch.float64).eval() for _ in range(2)
        )
        shard(shared, axes, exact=False)
        cuts = cuts_of(shared)
        expected = {}
        for number in range(2):
            args, saved = row(EVERY[name], "packed", LENGTHS[0] + number)
            _, grads = result(item, args, saved, 0.1, args.numel())
            expected = {path: expected.get(path, 0) + grad for path, grad in grads.items()}
        args, saved = row(EVERY[name], "packed", LENGTHS[0] + axes.row)
        _, pieces = result(shared, args, saved, 0.1, args.numel())
        expected = {
            path: cuts[path].of(grad) if path in cuts else grad for path, grad in expected.items()
        }
        actual_result[name] = worst(
            {path: grad.full_tensor() for path, grad in pieces.items()}, expected
        )
    return actual_result


@pytest.mark.slow
def test_data_and_tensor(four):
    names = ["gpt2", "llama", "gemma2", "mixtral", "t5", "vaswani", "alibi"]
    for answer in four.call(with_data, names=names):
        assert len(answer) == len(names) and max(answer.values()) < 1e-12, answer


def test_what_does_not_divide_is_refused_in_a_sentence():
    with pytest.raises(UserError, match="4 heads over 1 of keys and values cannot be cut in"):
        tensor.check(DECODERS["starcoder2"], 2)
    with pytest.raises(UserError, match="hidden 64 is below"):
        tensor.check(
            replace(
                DECODERS["nothing"], decoder=c.Stack(1, (tiny.block(c.Attention(128, head_dim=2)),))
            ),
            128,
        )
    assert (
        fits(DECODERS["llama"], 2) and not fits(DECODERS["llama"], 4) and fits(DECODERS["gpt2"], 4)
    )


def test_shares_differ_by_one_at_most():
    for size in range(4, 12):
        cuts = [tensor.bounds(size, 4, rank) for rank in range(4)]
        assert (
            [low for low, _ in cuts[1:]] == [high for _, high in cuts[:-1]]
            and cuts[0][0] == 0
            and cuts[-1][1] == size
        )
        assert max(high - low for low, high in cuts) - min(high - low for low, high in cuts) <= 1
