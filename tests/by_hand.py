"""A model whose weights are written by hand: two heads that copy what followed the same token before."""

from __future__ import annotations

import torch

from glassformer import config as c
from glassformer.core.nn import build_model


def made_by_hand():
    """Two layers of one head: the first copies the token before, the second looks for what followed
    its own token."""
    block = c.Block(c.Attention(1, scale=1.0), None, None)
    vocab, places = 24, 32
    stack = c.Stack(2, (block,), c.Learned(places))
    model = build_model(
        c.Decoder(places + 2 * vocab, places, c.Embed(vocab), stack, c.Head(tied=False)), seed=1
    )
    place, token, before = (
        slice(0, places),
        slice(places, places + vocab),
        slice(places + vocab, places + 2 * vocab),
    )
    item, two = (model.decoder.blocks[n].attn for n in (0, 1))
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
        model.decoder.position.weight[:, place] = torch.eye(places)
        model.embed.token.weight[:, token] = torch.eye(vocab)
        item.q.weight[place, place] = 50 * torch.eye(places).roll(-1, 0)  # place p asks for p - 1
        item.k.weight[place, place] = torch.eye(places)
        item.v.weight[token, token] = item.out.weight[before, token] = torch.eye(vocab)
        two.q.weight[token, token] = 50 * torch.eye(vocab)
        two.k.weight[token, before] = torch.eye(vocab)
        two.v.weight[token, token] = two.out.weight[token, token] = torch.eye(vocab)
        model.head.proj.weight[:, token] = torch.eye(vocab)
    return model.eval()
