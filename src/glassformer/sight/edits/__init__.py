"""Edits: one thing changed in a run, to see what comes of it. Each is one line; several go one
after the other.

    from glassformer.sight.edits import head_off, steer
    glassformer.look(model, tokenizer, text, "logits", edits=[head_off("decoder.blocks.3.attn", 4)])
    glassformer.generate(model, tokenizer, prompt, edits=[steer("decoder.blocks.2.resid", ("Love",
    "Hate"), 4.0)])

    head_off, attn_off, mlp_off, expert_off     a part adds nothing
    mask_token, swap_token                      another text
    scale, set_value, patch                     a value by its path (docs/names.md)
    steer, project_out                          a direction, of a probe too (docs/probes.md)
    set_attention                               who looks at whom

Paths may hold shell wildcards (``decoder.blocks.*.attn``). Positions count a text's tokens from 0,
those that generation adds too: a number, several, or a stretch such as "5:" or "2:4"; negative ones
count from the end of the text given.
"""

from __future__ import annotations

from ..reading import apply, tape_of
from .base import Edit
from .literals import parse, served_probe
from .parts import attn_off, expert_off, head_off, mlp_off, set_attention
from .token_edits import mask_token, swap_token
from .values import patch, project_out, scale, set_value, steer

__all__ = [
    "Edit",
    "apply",
    "attn_off",
    "expert_off",
    "head_off",
    "mask_token",
    "mlp_off",
    "parse",
    "patch",
    "project_out",
    "scale",
    "served_probe",
    "set_attention",
    "set_value",
    "steer",
    "swap_token",
    "tape_of",
]
