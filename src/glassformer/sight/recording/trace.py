"""A pass of a model of ours: the recorded operations with the model's own names, sides and tokens.

The model's tape (``core/nn/hooks.py``) names what it shows. Attention is written out in the readable
engine's steps, whichever engine computed it.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ...core.errors import need
from ...core.files import JsonObject
from ...core.nn import Model, Tape
from ...core.nn.attention import (
    Attention,
    AttentionEngine,
    AttentionInputs,
    attend,
    eager_attention,
)
from ...core.nn.finite import must_be_finite
from ...core.nn.hooks import Edit
from ...core.nn.model import Block, inference
from .. import answers, passes, text_table
from ..axes import SQUARE
from ..inputs import prepare
from ..labels import token_record
from .module_trace import KEEP, ModuleTrace
from .operations import Value
from .outside import Outside
from .plan import Plan, axes_of
from .program import program
from .recorder import WHOLE_PASS, Reached, Recorder, Stages

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer


class NamingTape(Tape):
    """Gives the recorder the model's own names, and records edits as steps of their own."""

    def __init__(
        self,
        recorder: Recorder,
        edits: Mapping[str, Edit],
        computed_apart: Iterable[str],
        check: Callable[[], None],
    ) -> None:
        super().__init__(edits=edits)
        self.recorder, self.computed_apart = recorder, frozenset(computed_apart)
        self.check = check

    def watches(self, path: str) -> bool:
        return path not in self.computed_apart or self.changes(path)

    def pass_through(self, path: str, x: Tensor) -> Tensor:
        if self.changes(path):
            x = self.recorder.edited(x, partial(self.edit, path))
        self.record(path, x)
        return x

    def record(self, path: str, x: Tensor) -> None:
        self.check()
        self.recorder.name(path, x)


def stages_of(model: Model, address: str) -> Stages:
    """The stages of a pass for one address: blocks before its own are passed, its own is the
    last."""
    name = address.partition("[")[0].strip()
    blocks = [path for path, module in model.named_modules() if isinstance(module, Block)]
    final = next((path for path in blocks if f"{name}.".startswith(f"{path}.")), "")
    if name in dict(model.named_parameters()):  # nothing is computed
        final = "embed"
    return Stages(frozenset(blocks) - {final}, final)


class DenseMask(NamedTuple):
    """A mask that is written out already."""

    visible: Tensor

    def dense(self) -> Tensor:
        return self.visible


class Trace(ModuleTrace):
    """One pass of ``model`` over tokens (1, T); addresses leave the batch row out.

    ``trace.plan`` says what was computed in which order.
    """

    batch = 1

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        tokens: Tensor,
        source: Tensor | None = None,
        edits: Mapping[str, Any] | None = None,
        keep: int = KEEP,
        check: Callable[[], None] = lambda: None,
        address: str | None = None,
    ) -> None:
        """``check`` is called at each named value of the pass and may raise.

        With an ``address`` the pass is for this question alone: it ends with the block of the
        address, and of each block before it keeps what it gives to the next. Its other numbers are
        computed again when they are asked for, with the same bits.
        """
        self.check_pass = check
        self.model = model
        self.tokens, self.source, self.edits = tokens, source, edits or {}
        ids = (tokens,) if source is None else (tokens, source)
        stages = WHOLE_PASS if address is None else stages_of(model, address)
        super().__init__(model, ids, {}, keep, tokenizer=tokenizer, stages=stages)
        if not self.edits:  # which may set anything
            # fused kernels make zeros of NaN scores: outputs hide them
            named = (
                value.tensor
                for name, value in self.aliases.items()
                if value.is_named and not name.endswith(".scores")  # -inf where masked
            )
            must_be_finite(model, *(x for x in named if x is not None and x.is_floating_point()))
        for value in (*self.leaves, *(x for op in self.operations for x in op.outputs)):
            value.batch = int(
                value.kind != "weight" and value.shape[:1] == (1,) and len(value.shape) > 1
            )
        self.plan = Plan(self)

    def _call(self, recorder: Recorder) -> Any:
        attentions = {path: m for path, m in self.model.named_modules() if isinstance(m, Attention)}
        # only an edit makes the model compute them
        inside = [f"{path}.{name}" for path in attentions for name in SQUARE]
        apart = (*inside, *(f"{path}.qkv" for path in attentions))
        tape = NamingTape(recorder, self.edits, apart, self.check_pass)
        changed = any(map(tape.changes, inside))
        view = copy.copy(self.model)  # the same weights, with an engine of its own
        if not changed:
            view.engine = self._engine(recorder)
        output = None
        with inference(self.model):
            with suppress(Reached):
                output = view(*self.args, tape=tape)
            for path in attentions:
                projections = [recorder.modules.get(f"{path}.{name}") for name in "qkv"]
                present = [value for value in projections if value is not None]
                is_apart = len(present) == 3 and not attentions[path].cross
                if is_apart and (name := f"{path}.qkv") not in recorder.names:
                    recorder.imagine(name, lambda *x: torch.cat(x, -1), *present)
            if "logits" in recorder.names:
                recorder.imagine("probs", partial(torch.softmax, dim=-1), recorder.names["logits"])
        return output

    def _engine(self, recorder: Recorder) -> AttentionEngine:
        """Computes attention as the model does, and records the readable engine's steps."""
        engine = self.model.engine

        def run(attention: AttentionInputs) -> Tensor:
            position, path = attention.position, recorder.path
            bias = None if position is None else attention.mask.bias(position)
            visible = attention.mask.dense()
            attention = attention._replace(bias=bias)
            with recorder.paused():
                z = attend(attention, engine)

            def steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
                written: Any = attention._replace(q=q, k=k, v=v, bias=bias, look=look)
                return eager_attention(written._replace(mask=DenseMask(mask)))

            def look(name: str, x: Tensor) -> Tensor:
                recorder.name(f"{path}.{name}", x)
                return x

            arguments = (attention.q, attention.k, attention.v, visible, bias)
            return recorder.write_out(steps, z, *arguments)

        return AttentionEngine("recorded", run, lambda inputs: True, None)

    def __repr__(self) -> str:
        size = f"{self.tokens.shape[1]} tokens, {len(self.plan.ops)} operations"
        return (
            f"<Trace of {size}: trace[address], trace.explain(address), trace.lines() lists "
            "the addresses>"
        )

    # --------------------------------------------------------------------------------- addresses

    def places(self, value: Value, pieces: list[str]) -> list[str]:
        """An index of all sides; words in quotes are places of tokens."""
        skipped = value.batch if pieces and len(pieces) < len(value.shape) else 0
        pieces = super().places(value, pieces)
        if len(pieces) > len(value.shape) - value.batch > 0 and len(pieces) != len(value.shape):
            skipped = value.batch
        return ["0"] * skipped + pieces

    def sizes(self, value: Value) -> tuple[int, ...]:
        return value.shape[value.batch :]

    def sides(self, value: Value) -> list[str]:
        pairs = zip(axes_of(value), value.shape, strict=True)
        return [f"{axis} {size}" for axis, size in pairs][value.batch :]

    def example(self) -> str:
        """An address that exists."""
        op = next((op for op in self.plan if op.quadratic), next(iter(self.plan)))
        return f'"{op.id}[{",".join("0" for _ in op.shape[1:])}]"'

    # ---------------------------------------------------------------------------- as a document

    def card(self) -> JsonObject:
        """Facts about the model: its kind, sizes, and what can be asked of it."""
        return answers.card(self.model.config)

    def _plain(self) -> Any:
        with inference(self.model):
            return self.model(*self.args, tape=Tape(edits=self.edits) if self.edits else None)

    def lines(self, all: bool = False) -> list[str]:
        """The plan as text: a line for each operation, in order."""
        rows = []
        for op in self.plan:
            pairs = zip(op.axes, op.shape, strict=True)
            sides = " x ".join(f"{axis} {size}" for axis, size in pairs if axis != "B")
            rows.append((op.id, op.kind, sides, ", ".join(op.inputs), op.source))
        return text_table.lines(
            rows, ("address", "kind", "sides", "of", "code"), left_columns=range(5)
        )

    def to_dict(self) -> JsonObject:
        """The run as JSON holds it: tokens, plan, what was kept."""
        record = {"tokens": token_record(self.tokenizer, self.tokens[0].tolist())}
        if self.source is not None:
            record["source"] = token_record(self.source_tokenizer, self.source[0].tolist())
        memory = {"tier": self.tier, "bytes": self.kept_bytes}
        return {**record, "plan": self.plan.to_dict(), "kept": memory, "ms": 1000 * self.seconds}

    def program(self, most: int) -> tuple[JsonObject, JsonObject] | None:
        # half precision, base64
        fits = 1.5 * sum(x.numel() for x in self.model.parameters()) < most
        return program(self) if fits else None

    def live(self, view: str = "playground", height: int = 640) -> Any:
        """A widget for a notebook (extra ``live``): the page on this text, every number computed by
        the kernel.

        ``view`` is one of its screens, such as "attention". It lives as long as the kernel does.
        """
        # by its name: the page stands above this room
        live_page = importlib.import_module("glassformer.serve.page.live")
        return live_page.live(self, view, height)


def record(
    model: nn.Module,
    tokenizer: Any,
    text: Any,
    source: Any = None,
    edits: Any = (),
    keep: int = KEEP,
    address: str | None = None,
) -> ModuleTrace:
    """A pass over a text (or a row of ids), recorded; ``edits`` of a model that is not ours are
    functions by address."""
    if not isinstance(model, Model):
        return passes.record_foreign(model, tokenizer, text, source, edits)
    inputs = prepare(model, tokenizer, text, source, edits)
    args = (model, tokenizer, inputs.tokens, inputs.source, inputs.edits, keep)
    if address is not None:
        short = Trace(*args, address=address)
        if short.holds(address):
            return short
    return Trace(*args)


def trace(model: nn.Module, *args: Any, keep: int = KEEP, **kwargs: Any) -> ModuleTrace:
    """Records one forward pass, in which every number has an address and opens to its arithmetic.

    Args:
        model: Any PyTorch module.
        args: Of a model of ours or of transformers its tokenizer and a text; of any other module
            what it is called with.
        keep: The most bytes of recorded values.
        kwargs: ``source`` for an encoder-decoder's encoder; of other modules what they are called
            with. ``address`` of a model of ours: the one value that will be asked for, which ends
            the pass and bounds its memory.

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
