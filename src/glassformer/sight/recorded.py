"""One recorded pass of a model, ours or not, as the instruments read it.

B batch, T tokens, C model dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.errors import need
from ..core.nn import Model, Tape
from . import looking, passes
from .recording.module_trace import KEEP, ModuleTrace
from .recording.operations import Operation
from .recording.outside import Outside
from .recording.rules import MOVES, behind
from .recording.trace import Trace

OWN_TABLES = re.compile(r"(source_)?embed\.(token|lag\.\d+)")


def record(
    model: nn.Module,
    tokenizer: Any,
    text: Any,
    source: Any = None,
    edits: Any = (),
    keep: int = KEEP,
) -> ModuleTrace:
    """A pass over a text (or a row of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    if not isinstance(model, Model):
        return passes.record_foreign(model, tokenizer, text, source, edits)
    inputs = looking.prepare(model, tokenizer, text, source, edits)
    return Trace(model, tokenizer, inputs.tokens, inputs.source, inputs.edits, keep)


def trace(model: nn.Module, *args: Any, keep: int = KEEP, **kwargs: Any) -> ModuleTrace:
    """Records one forward pass, in which every number has an address and opens to its arithmetic.

    Args:
        model: Any PyTorch module.
        args: Of a model of ours or of transformers its tokenizer and a text; of any other module
            what it is called with.
        keep: The most bytes of recorded values.
        kwargs: ``source`` for an encoder-decoder's encoder; of other modules what they are called
            with.

    Returns:
        The pass: ``.explain(address)``, ``.lines()``, ``.save("pass.html")``. A notebook shows it.

    Raises:
        UserError: The module cannot be opened.

    Example:
        >>> pass_ = glassformer.trace(model, tokenizer, "Once upon a")
        >>> print(pass_.explain("logits[-1,5]"))
    """
    if isinstance(model, Model):
        return record(model, *args, **{**kwargs, "keep": keep})
    if len(args) == 2 and isinstance(args[1], str) and callable(args[0]):
        outside, source = Outside(model, args[0]), kwargs.pop("source", None)
        need(source is None or outside.is_pair, "This model reads one text; leave out the source.")
        need(bool((args[1] if source is None else source).strip()), "There is no text; give one.")
        inputs = {**args[0](args[1] if source is None else source, return_tensors="pt"), **kwargs}
        if outside.is_pair and not any(name.startswith(("decoder_", "labels")) for name in inputs):
            target = "" if source is None else args[1]
            inputs["decoder_input_ids"] = outside.ids(target, True)
        return ModuleTrace(model, (), inputs, keep, tokenizer=outside.tokenizer)
    return ModuleTrace(model, args, kwargs, keep)


def lookups(trace: ModuleTrace) -> dict[str, tuple[int, Operation]]:
    """The tables that the tokens are looked up in: ``embed.token``, ``source_embed.token``, ours by
    their own names; which of the pass's look-ups each is."""
    tables = {}
    operations = [op for op in trace.operations if op.name == "embedding"]
    sides = {"embed.token": trace.tokens, "source_embed.token": trace.source}
    for number, operation in enumerate(operations):
        if OWN_TABLES.fullmatch(name := operation.outputs[0].address):
            tables[name] = number, operation
        *_, ids = behind(operation.inputs[0], MOVES)
        for name, tokens in sides.items():
            if tokens is None or ids.tensor is None or ids.kind != "input":
                continue
            if torch.equal(ids.tensor, tokens):
                tables.setdefault(name, (number, operation))
    return tables


def again(trace: ModuleTrace, rows: Mapping[int, Tensor], count: int, position: int) -> Any:
    """The answer to ``count`` texts at once with other ``rows`` (B, T, C) of look-ups, by their
    number in the pass; of a model of ours logits at a position alone."""

    def widened(x: Any) -> Any:
        return x.expand(count, *x.shape[1:]) if isinstance(x, Tensor) else x

    kwargs = {name: widened(x) for name, x in trace.kwargs.items()}
    if isinstance(trace, Trace):
        place = torch.tensor([position], device=trace.tokens.device)
        kwargs = {"tape": Tape(edits=trace.edits), "logits": place}
    with _OtherRows(rows):
        return trace.module(*map(widened, trace.args), **kwargs)


class _OtherRows(TorchFunctionMode):
    """Gives other rows than a table would, by the number of the look-up."""

    def __init__(self, rows: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.rows, self.count = rows, -1

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
        if function is nn.functional.embedding:
            self.count += 1
            if self.count in self.rows:
                return self.rows[self.count]
        return function(*args, **(kw or {}))
