"""One recorded pass of a model, ours or not, as the instruments read it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.errors import need
from ..core.nn import Model
from . import looking, passes
from .recording.module_trace import KEEP, ModuleTrace
from .recording.outside import Outside
from .recording.trace import Trace


def record(
    model: nn.Module,
    tokenizer: Any,
    text: Any,
    source: Any = None,
    edits: Any = (),
    keep: int = KEEP,
) -> passes.RecordedPass:
    """A pass over a text (or a row of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    if not isinstance(model, Model):
        return passes.record_foreign(model, tokenizer, text, source, edits)
    inputs = looking.prepare(model, tokenizer, text, source, edits)
    trace = Trace(model, tokenizer, inputs.tokens, inputs.source, inputs.edits, keep)
    return passes.RecordedPass(model, tokenizer, inputs.tokens, inputs.source, trace, inputs.edits)


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
        return record(model, *args, **{**kwargs, "keep": keep}).trace
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
