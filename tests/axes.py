"""What the tests of ``scale/``'s axes share: families, rows of every kind, and a pass with its
gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from glassformer import config as c
from glassformer.core.nn import EncoderDecoder, build_model
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from tiny import ALL, STATES, tokens

LENGTHS = 22, 150  # one fills no shard, the other is several blocks of the engine


def longer(cfg):
    """The same for rows of 150, without a pool."""
    table = c.Learned(LENGTHS[1])
    stacks = {
        n: replace(s, position=table)
        for n, s in cfg.stacks.items()
        if isinstance(s.position, c.Learned)
    }
    return replace(cfg, pool=None, **stacks)


FAMILIES = {
    name: longer(cfg) for name, cfg in ALL.items() if not cfg.recurrent and name not in STATES
}


def row(cfg, scene, length):
    """Tokens and what else a model is given of a row; and that of its source."""
    second_tokens = tokens(2, length)
    pos = torch.arange(length).expand(2, -1).clone()
    saved = {"pos": pos}
    if scene == "packed":
        border = torch.tensor([[length // 3], [length // 2]])
        saved["document_ids"] = (pos >= border).long()
        saved["pos"] = torch.where(pos >= border, pos - border, pos)
    if scene == "padded":
        saved["pos"] = torch.stack((pos[0], torch.cat((torch.full((5,), -1), pos[1, :-5]))))
    if scene == "prefix" and isinstance(cfg, c.Decoder) and not cfg.recurrent:
        saved["prefix"] = pos < torch.tensor([[4], [length // 2]])
    if isinstance(cfg, c.EncoderDecoder):
        saved["source"] = tokens(2, 13, seed=5)
        saved["source_pos"] = torch.arange(13).expand(2, -1).clone()
        if scene == "padded":
            saved["source_pos"][0, 9:] = -1
        if scene == "packed":
            saved["source_document_ids"] = (saved["source_pos"] > 6).long()
    if getattr(cfg.embed, "segments", 0):
        saved["segments"] = (pos > 7).long()
    return second_tokens, saved


def result(model, inputs, saved, weigh, count):
    """Logits, and the gradients of a weighted sum of them and of the auxiliary losses."""
    model.zero_grad()
    source = (saved["source"],) if isinstance(model, EncoderDecoder) else ()
    out = model(inputs, *source, **{name: x for name, x in saved.items() if name != "source"})
    real = (saved["pos"] >= 0)[..., None]
    loss = (out.logits * weigh * real).sum() + sum(out.aux.values()) * count
    loss.backward()
    return (out.logits * real).detach(), gradients(model)


def gradients(model):
    return {path: p.grad for path, p in model.named_parameters() if p.grad is not None}


def worst(result, expected):
    """The largest difference of gradients beside the largest number of each."""
    # keys' bias has none: what is there is rounding
    loudest = max(float(grad.abs().max()) for grad in expected.values())
    sizes = {path: max(float(grad.abs().max()), loudest / 100) for path, grad in expected.items()}
    return max(
        float((result[path] - grad).abs().max()) / sizes[path] for path, grad in expected.items()
    )


def twins(cfg, double=True):
    """Two models of the same weights: what stays on one process, and what is shared out."""
    dtype = torch.float64 if double else None
    return [build_model(cfg, seed=1, dtype=dtype).eval() for _ in range(2)]


def along(mesh, axis):
    """A mesh with all processes on one axis."""
    return Mesh(Parallel(**{"data": 1, axis: mesh.size}), mesh.rank, mesh.device, mesh.store)


def cut(gradients, cuts):
    """What this process holds of each gradient."""
    return {path: cuts[path].of(grad) if path in cuts else grad for path, grad in gradients.items()}


def differences(results, expected):
    """The largest difference of logits and of gradients, each beside the largest number."""
    (logits, grads) = results
    (right, right_grads) = expected
    assert {path: grads[path].shape for path in right_grads} == {
        path: grad.shape for path, grad in right_grads.items()
    }
    return [float((logits - right).abs().max() / right.abs().max()), worst(grads, right_grads)]


def check_near(answers, names, bound=1e-12):
    """Every process compared every family, and none is further off than rounding."""
    for answer in answers:
        assert answer.keys() == set(names)
        assert not {name: far for name, far in answer.items() if not max(far) < bound}
