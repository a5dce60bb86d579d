"""``glassformer why``: one number of a forward pass, and the numbers that it was computed from."""

from __future__ import annotations

from .common import CommandOutput
from .options import Edits, ModelOptions, Text
from .signature import Whole

EXAMPLES = (
    'glassformer why out/mine "The cat sat" "logits[2,5]"',
    'glassformer why out/mine "The cat sat" "decoder.blocks.3.attn.scores[0,2,1]" --up 3',
)


def run(
    options: ModelOptions,
    text: Text,
    address: str | None = None,
    *,
    source: str | None = None,
    up: Whole = 0,
    terms: Whole = 8,
    edit: Edits = (),
) -> CommandOutput:
    """Opens one number of a forward pass to its operands.

    address ADDRESS: an address such as "logits[2,5]"; without its index: the shape; none lists the
        plan of the pass
    up N: then N steps back along the largest term (0)
    terms N: the N largest terms of each
    json: every number as JSON
    """
    model, tokenizer = options.load_with_tokenizer()
    from ..sight.tracing import trace

    tape = trace(model, tokenizer, text, source, edit)
    if address is None:
        return CommandOutput(tape.to_dict, tape.lines)
    name, index = tape.parse(address)
    if index is None:
        shape, axes = tape.shape(name)
        sides = " x ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        shape_record = {"address": name, "axes": list(axes), "shape": list(shape)}
        return CommandOutput(shape_record, [f"{name}: {sides}"])
    steps = list(tape.why(address, up))
    records = [step.to_dict(terms) for step in steps]
    lines = "\n\n".join("\n".join(step.lines(terms)) for step in steps)
    return CommandOutput(records if up else records[0], [lines])
