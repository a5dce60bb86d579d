"""What the tests of ``parallel/``'s axes share: families, rows of every kind, and a pass with its
gradients."""

from __future__ import annotations

from dataclasses import replace

import torch

from glassformer import config as c
from glassformer.nn import EncoderDecoder
from tiny import ALL, tokens

LENGTHS = 22, 150  # one fills no shard, the other is several blocks of the engine


def longer(cfg):
    """The same for rows of 150, without a pool."""
    table = c.Learned(LENGTHS[1])
    stacks = {
        n: replace(s, position=table)
        for n, s in c.stacks(cfg).items()
        if isinstance(s.position, c.Learned)
    }
    return replace(cfg, pool=None, **stacks)


FAMILIES = {name: longer(cfg) for name, cfg in ALL.items() if not c.recurrent(cfg)}


def row(cfg, scene, length):
    """Tokens and what else a model is given of a row; and that of its source."""
    given = tokens(2, length)
    pos = torch.arange(length).expand(2, -1).clone()
    kept = {"pos": pos}
    if scene == "packed":
        border = torch.tensor([[length // 3], [length // 2]])
        kept["document_ids"] = (pos >= border).long()
        kept["pos"] = torch.where(pos >= border, pos - border, pos)
    if scene == "padded":
        kept["pos"] = torch.stack((pos[0], torch.cat((torch.full((5,), -1), pos[1, :-5]))))
    if scene == "prefix" and isinstance(cfg, c.Decoder) and not c.recurrent(cfg):
        kept["prefix"] = pos < torch.tensor([[4], [length // 2]])
    if isinstance(cfg, c.EncoderDecoder):
        kept["source"] = tokens(2, 13, seed=5)
        kept["source_pos"] = torch.arange(13).expand(2, -1).clone()
        if scene == "padded":
            kept["source_pos"][0, 9:] = -1
        if scene == "packed":
            kept["source_document_ids"] = (kept["source_pos"] > 6).long()
    if getattr(cfg.embed, "segments", 0):
        kept["segments"] = (pos > 7).long()
    return given, kept


def result(model, given, kept, weigh, count):
    """Logits, and the gradients of a weighted sum of them and of the auxiliary losses."""
    model.zero_grad()
    source = (kept["source"],) if isinstance(model, EncoderDecoder) else ()
    out = model(given, *source, **{name: x for name, x in kept.items() if name != "source"})
    real = (kept["pos"] >= 0)[..., None]
    loss = (out.logits * weigh * real).sum() + sum(out.aux.values()) * count
    loss.backward()
    return (out.logits * real).detach(), {
        n: p.grad for n, p in model.named_parameters() if p.grad is not None
    }


def worst(found, wanted):
    """The largest difference of gradients beside the largest number of each."""
    # keys' bias has none: what is there is rounding
    loudest = max(float(grad.abs().max()) for grad in wanted.values())
    sizes = {path: max(float(grad.abs().max()), loudest / 100) for path, grad in wanted.items()}
    return max(
        float((found[path] - grad).abs().max()) / sizes[path] for path, grad in wanted.items()
    )
