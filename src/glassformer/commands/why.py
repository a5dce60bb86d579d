"""``glassformer why``: one number of a forward pass, and the numbers that it was computed from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..core.errors import need, note
from .options import Edits, ModelOptions, Text
from .parsing import CommandOutput, Count, Whole

EXAMPLES = (
    'glassformer why tiny "O Romeo, Romeo! wherefore art" "logits[2,5]"',
    'glassformer why --model-file model.py:make "5 3 8" "output[0,2,7]" --up 3',
    'glassformer why tiny "The cat sat" "decoder.blocks.3.attn.scores[0,2,1]" --up 3',
    'glassformer why out/mine "decoder.blocks.3.attn.q.weight[5,7]" --time --step 12',
    'glassformer why out/mine "O Romeo, Romeo!" --influence 10',
)


def run(
    options: ModelOptions,
    text: Text | None = None,
    address: str | None = None,
    *,
    model_file: str | None = None,
    with_transformers: bool = False,
    source: str | None = None,
    up: Whole = 0,
    terms: Whole = 8,
    edit: Edits = (),
    time: bool = False,
    step: int | None = None,
    influence: Count | None = None,
) -> CommandOutput:
    """Opens one number of a forward pass to its operands.

    address ADDRESS: an address such as "logits[2,5]"; without an index, its shape; none lists the
        operations of the pass
    model_file FILE.py:FUNCTION: your own model in place of MODEL: any torch.nn.Module that the
        function returns; TEXT is then token ids, "5 3 8" (docs/sight.md)
    with_transformers: load the folder MODEL with the library transformers
    up N: follow the largest term N steps back (0)
    terms N: show the N largest terms of each number
    time: MODEL is a run's folder and ADDRESS a weight; opens it into its first value and its updates
    step K: with --time, open the update of step K into the texts of its batch
    influence N: MODEL is a run's folder; the N sequences of its training that moved the loss of TEXT
        most, and the loss without each
    json: every number as JSON
    """
    need(step is None or time, "--step opens an update of a run; add --time.")
    if model_file is not None:  # it stands for MODEL, so the words move up
        text, address = options.model, text
    need(text is not None, 'Give the text that the model reads, as in why MODEL "The cat".')
    assert text is not None
    if time or influence is not None:
        need(address is None, "A run is opened at one weight, or for one text; quote it.")
        need(
            not (time and influence is not None),
            "--time opens a weight and --influence a text; leave one out.",
        )
        need(
            not (edit or source or up or model_file or with_transformers),
            "--time and --influence open a run as it was; leave --edit, --source, --up, --model-file "
            "and --with-transformers out.",
        )
        return _in_time(options.run_folder(), text, step, influence, terms)
    if model_file is not None or with_transformers:
        need(not edit, "--edit is for models of Glassformer's families.")
        need(
            not (model_file and with_transformers),
            "--model-file and --with-transformers each name another model; leave one out.",
        )
        from ..sight.recording import outside

        foreign = (
            outside.from_transformers(options.model)
            if model_file is None
            else outside.from_file(model_file)
        )
        return _foreign(foreign.trace(text, source=source), address, up, terms)
    model, tokenizer = options.load_with_tokenizer()
    from ..sight.recording.trace import trace

    tape = trace(model, tokenizer, text, source, edit, address=address)
    if address is None:
        return CommandOutput(tape.to_dict, tape.lines)
    value, index = tape.parse(address)
    if not index and value.shape:
        shape, axes = tape.shape(value.address)
        sides = " x ".join(f"{axis} {size}" for axis, size in zip(axes, shape, strict=True))
        shape_record = {"address": value.address, "axes": list(axes), "shape": list(shape)}
        return CommandOutput(shape_record, [f"{value.address}: {sides}"])
    return _opened(tape, address, up, terms)


def _in_time(
    run: str, subject: str, step: int | None, left_out: int | None, terms: int
) -> CommandOutput:
    """A weight of a run, one of its updates, or the influence of sequences on a text."""
    from ..runs import influences, updates

    if left_out is not None:
        effect = influences.influence(run, subject, count=left_out)
        return CommandOutput(lambda: asdict(effect), effect.lines)
    result = (
        updates.update_texts(run, subject, step)
        if step is not None
        else updates.weight_history(run, subject)
    )
    return CommandOutput(lambda: asdict(result), lambda: result.lines(terms))


def _foreign(tape: Any, address: str | None, up: int, terms: int) -> CommandOutput:
    """A pass of a model that is not of our families, by its own code."""
    module = type(tape.module)
    code = f"Computed by {module.__module__}.{module.__qualname__}."
    if address is None:
        return CommandOutput(tape.to_dict, [code, "", *tape.lines()])
    value, index = tape.parse(address)
    if not index and value.shape:
        shape = " x ".join(map(str, value.shape))
        return CommandOutput(
            {"address": address, "shape": list(value.shape)}, [f"{address}: {shape}"]
        )
    return _opened(tape, address, up, terms)


def _opened(tape: Any, address: str, up: int, terms: int) -> CommandOutput:
    """The arithmetic of a number, or of the largest of a row."""
    if tape[address].numel() > 1:
        address = tape.largest(address)
        note(f"The largest of these numbers is {address}.")
    steps = list(tape.why(address, up))
    records = [step.to_dict(terms) for step in steps]
    lines = "\n\n".join("\n".join(step.lines(terms)) for step in steps)
    return CommandOutput(records if up else records[0], [lines])
