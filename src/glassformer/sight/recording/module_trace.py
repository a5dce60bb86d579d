"""``trace`` of any PyTorch module: one pass in which every number has an address."""

from __future__ import annotations

import functools
import inspect
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...core.errors import UserError
from ...core.files import JsonObject
from .. import answers, export, text_table
from ..labels import display_texts
from ..word_places import place_of_word
from .causes import Caused
from .opening import Explanation, explain
from .operations import Edit, Key, Slices, Value
from .plan import Plan
from .recorder import WHOLE_PASS, Recorder, Stages
from .rules import Index, read
from .sides import ROW
from .structure import Structure

if TYPE_CHECKING:
    from ...core.tokenizer.tokenizer import Tokenizer

KEEP = 512 << 20
"""Bytes of recorded values that a trace keeps by default; what is beyond is computed again when it
is asked for."""


PLACES = {
    "T": "token",
    "S": "key",
    "V": "word",
    "H": "head",
    "K": "key-value head",
    "E": "expert",
    "L": "label",
    "k": "choice",
    "F": "neuron",
}  # what a place along a side is called


class ModuleTrace(Caused):
    """A forward pass of a module: ``trace[address]`` is any value of it, ``trace.explain(address)``
    the arithmetic of one number, ``trace.output`` what the module returned.

    ``tokenizer`` says what the ids mean that the module is given; nothing is read by it.
    """

    batch = 0  # sides of one row that addresses leave out

    def __init__(
        self,
        module: nn.Module,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        keep: int = KEEP,
        edits: Mapping[Key, Edit] | None = None,
        tokenizer: Tokenizer | None = None,
        stages: Stages = WHOLE_PASS,
    ) -> None:
        check_module(module)
        self.tokenizer = tokenizer
        self.module, self.args, self.kwargs = module, args, dict(kwargs or {})
        self.keep, self.key_edits = keep, dict(edits or {})
        recorder = Recorder(keep, self.key_edits, stages)
        started, random_state = time.perf_counter(), torch.get_rng_state()
        with recorder.watching(module):
            for address, tensor in self._inputs().items():
                recorder.leaf(tensor, address, "input")
            self.output = self._call(recorder)
        self.seconds = time.perf_counter() - started
        # by a fused function; beside a module that does not train other threads may draw
        is_training = any(submodule.training for submodule in module.modules())
        if is_training and not torch.equal(random_state, torch.get_rng_state()):
            raise UserError(
                "The pass draws random numbers, so a second pass would differ; call model.eval() first."
            )
        self.outputs = fields(self.output)
        if not self.outputs and not stages.final:
            raise UserError(
                f"{type(module).__name__} returns no tensor, so there is nothing to explain."
            )
        outputs = {name: recorder.returns(tensor) for name, tensor in self.outputs.items()}
        self.operations, self.leaves = recorder.operations, recorder.leaves
        self.kept_bytes, self.kept_all = recorder.kept_bytes, recorder.kept_all
        # where the model's own name is a module's path, the module's result is its projection
        modules, returned = (
            {f"{name}_proj" if name in recorder.names else name: x for name, x in values.items()}
            for values in (recorder.modules, recorder.returned)
        )
        self.aliases = {**modules, **outputs, **recorder.names}
        self.values = _addresses(recorder, {**returned, **outputs})

    def _call(self, recorder: Recorder) -> Any:
        """The pass itself."""
        return self.module(*self.args, **self.kwargs)

    def _inputs(self) -> dict[str, Tensor]:
        """The tensors that the module is given, by the names of its parameters."""
        try:
            names = inspect.signature(self.module.forward).bind(*self.args, **self.kwargs).arguments
        except TypeError:
            names = {f"input.{at}": x for at, x in enumerate(self.args)} | self.kwargs
        return named_tensors(names)

    def __repr__(self) -> str:
        return (
            f"<Trace of {type(self.module).__name__}: {len(self.operations)} operations; "
            "trace[address], trace.explain(address), trace.lines() lists the addresses>"
        )

    # --------------------------------------------------------------------------------- addresses

    def value(self, name: str) -> Value:
        """The value at an address without an index; raises UserError where there is none."""
        value = self.values.get(name) or self.aliases.get(name)
        if value is not None:
            return value
        names = dict.fromkeys((*self.aliases, *self.values))
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        meant = f' Did you mean "{near[0]}"?' if near else ""
        nearby = f" Near it: {', '.join(near[1:])}." if near[1:] else ""
        raise UserError(
            f'Nothing has the address "{name}".{meant}{nearby} `why MODEL TEXT` lists them all.'
        )

    def holds(self, address: str) -> bool:
        """True where the pass has a value of this name."""
        name = address.partition("[")[0].strip()
        return name in self.values or name in self.aliases

    def parse(self, address: str) -> tuple[Value, Slices]:
        """An address as a value and an index, of as many dimensions as are given."""
        match = re.fullmatch(r"\s*([^\[\]\s]+)\s*(?:\[(.*)\])?\s*", address)
        if match is None:
            raise UserError(f'"{address}" is no address; give one such as {self.example()}.')
        value = self.value(match.group(1))
        inside = re.findall(r'"[^"]*"|\'[^\']*\'|[^,]+', match.group(2) or "")
        pieces = self.places(value, [piece.strip() for piece in inside if piece.strip()])
        sides = " x ".join(self.sides(value))
        if len(pieces) > len(value.shape):
            count = len(value.shape) - value.batch
            without = ", without the batch row" * value.batch
            raise UserError(
                f"{match.group(1)} has {count} sides ({sides}) and the index "
                f"{len(pieces) - value.batch}; give {count}{without}."
            )
        return value, tuple(
            _place(piece, size, f"{match.group(1)} is {sides or 'one number'}")
            for piece, size in zip(pieces, value.shape, strict=False)
        )

    def example(self) -> str:
        """An address that exists."""
        return f'"{next(iter(self.aliases))}[0,0]"'

    def places(self, value: Value, pieces: list[str]) -> list[str]:
        """An index as it is read; words in quotes are places of tokens."""
        skipped = value.batch if len(pieces) < len(value.shape) else 0
        words = {at for at, piece in enumerate(pieces) if piece[0] in "\"'"}
        axes = self.plan.axes(value)[skipped:] if words else ()  # naming sides takes a while
        for at in words & {*range(len(axes))}:
            pieces[at] = place_of_word(self, value, axes[at], pieces[at])
        return pieces

    def sides(self, value: Value) -> list[str]:
        """The sides of a value as messages say them."""
        return list(map(str, value.shape))

    def __getitem__(self, address: str) -> Tensor:
        return self.numbers(*self.parse(address))

    def numbers(self, value: Value, index: Slices) -> Tensor:
        """The numbers at an index of a value."""
        places = [*index, *[slice(None)] * (len(value.shape) - len(index))]
        region = tuple(
            slice(at, at + 1) if isinstance(at, int) else slice(*at.indices(size)[:2])
            for at, size in zip(places, value.shape, strict=True)
        )
        return read(value, region)[
            tuple(0 if isinstance(at, int) else slice(None) for at in places)
        ]

    def addresses(self) -> list[str]:
        """The address of every value, in the order in which they were computed."""
        return [x.address for operation in self.operations for x in operation.outputs if x.address]

    def lines(self, all: bool = False) -> list[str]:
        """The pass as text, a line for each value; integers and masks where ``all`` is asked."""
        rows = []
        for operation in self.operations:
            for value in operation.outputs:
                if all or (value.dtype.is_floating_point and not value.is_view):
                    shape = " x ".join(map(str, value.shape))
                    rows.append((value.address, operation.name, shape, str(operation.line)))
        return text_table.lines(
            rows, ("address", "function", "shape", "code"), left_columns=range(4)
        )

    def to_dict(self) -> JsonObject:
        """The pass as JSON holds it: every operation with its operands, in order."""
        plan = [
            {
                "id": value.address,
                "function": operation.name,
                "in": [x.address for x in operation.inputs],
                "shape": list(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."),
                "src": str(operation.line),
            }
            for operation in self.operations
            for value in operation.outputs
        ]
        aliases = {name: value.address for name, value in self.aliases.items()}
        return {"plan": plan, "names": aliases, "kept": self.kept_bytes, "ms": 1000 * self.seconds}

    # ----------------------------------------------------------------------------------- reasons

    def explain(self, address: str) -> Explanation:
        """The arithmetic of one number."""
        value, index = self.parse(address)
        at: Index = tuple(place for place in index if isinstance(place, int))
        if len(at) < len(value.shape):
            zeros = ",".join("0" for _ in value.shape[value.batch :])
            name = address.partition("[")[0].strip()
            raise UserError(
                f"{address} is {' x '.join(self.sides(value))} numbers; give one of them, as "
                f"{name}[{zeros}]."
            )
        place = self.place_names(value, at) if self.tokenizer is not None or self.batch else ""
        return replace(explain(value, at), place=place)

    def place_names(self, value: Value, at: Index) -> str:
        """The place of a number in words: token 7 "it", head 4."""
        names = []
        for axis, place in zip(self.plan.axes(value) if value.operation else (), at, strict=False):
            if axis in ("B", "N", ROW):
                continue
            words = []
            if self.tokenizer is not None and axis in ("T", "S", "V"):
                ids, reader = self.side(value, axis)
                # a side may have more places than tokens: a sink
                words = display_texts(reader, [place] if axis == "V" else ids[place : place + 1])
            names.append(
                " ".join((PLACES.get(axis, "dimension"), str(place), *map('"{}"'.format, words)))
            )
        return ", ".join(names)

    def side(self, value: Value, axis: str) -> tuple[list[int], Tokenizer | None]:
        """The token ids along a side of a value, and their tokenizer."""
        if self.source is not None and axis in self.plan.across(value, (axis,)):
            return self.source[0].tolist(), self.source_tokenizer
        return self.tokens[0].tolist(), self.tokenizer

    def largest(self, address: str) -> str:
        """The address of the number at an address that is largest in size."""
        value, index = self.parse(address)
        sizes = torch.full(value.shape, -1.0, dtype=torch.float64)
        sizes[index] = self[address].double().abs().nan_to_num(posinf=0).cpu()
        places = map(int, torch.unravel_index(sizes.argmax(), value.shape))
        return f"{value.address}[{','.join(map(str, [*places][value.batch :]))}]"

    def why(self, address: str, up: int = 0) -> Iterator[Explanation]:
        """``explain``, then ``up`` steps back along the operand that counts most."""
        explanation = self.explain(address)
        yield explanation
        for _ in range(up):
            largest = explanation.largest()
            if largest is None:
                return
            explanation = self.explain(largest)
            yield explanation

    def check(self) -> float:
        """The largest difference between what this pass returned and a pass that nobody watches;
        with edits it is what they change."""
        pairs = zip(fields(self._plain()).values(), self.outputs.values(), strict=True)
        return max(float((a.double() - b.double()).abs().max()) for a, b in pairs if a.numel())

    def _plain(self) -> Any:
        """The module's result where nobody watches."""
        with torch.no_grad():
            return self.module(*self.args, **self.kwargs)

    # ------------------------------------------------------------------------------------- edits

    def edit(self, edits: Mapping[str, Edit]) -> ModuleTrace:
        """The pass again with values changed: ``{address: function of the value}``.

        An address with an index changes that part alone.
        """
        keys: dict[Key, Edit] = {}
        for name, change in edits.items():
            value, index = self.parse(name)
            if value.key is None:
                raise UserError(
                    f"{name} is an input or a weight of the pass, not a result; change it directly."
                )
            keys[value.key] = _partial(change, index) if index else change
        edits_of_keys = {**self.key_edits, **keys}
        call = (self.module, self.args, self.kwargs, self.keep)
        return ModuleTrace(*call, edits_of_keys, self.tokenizer)

    # ----------------------------------------------------------------------------- as a document

    @functools.cached_property
    def plan(self) -> Plan:
        """The operations that a reader looks at, in order, with the names of their sides."""
        return Plan(self)

    @functools.cached_property
    def names(self) -> dict[str, list[str]]:
        """The other names of operations."""
        return self.plan.names()

    @functools.cached_property
    def tokens(self) -> Tensor:
        """The token ids (1, T) that the module was given; none where it was given no ids."""
        return self._ids(self.plan.sides.text if self.plan.sides else None)

    @functools.cached_property
    def source(self) -> Tensor | None:
        """The token ids of an encoder-decoder's source."""
        leaf = self.plan.sides.source if self.plan.sides else None
        return self._ids(leaf) if leaf else None

    @functools.cached_property
    def structure(self) -> Structure:
        """The attentions and the residual stream of the pass."""
        return Structure(self)

    @property
    def answer(self) -> Tensor:
        """The answer: (B, T, V), or (B, V) of a classifier."""
        return self.outputs[self.structure.name]

    @property
    def words(self) -> list[str]:
        """The tokens as a table shows them."""
        return display_texts(self.tokenizer, self.tokens[0].tolist())

    @property
    def source_words(self) -> list[str] | None:
        """The tokens of an encoder-decoder's source, as a table shows them."""
        if self.source is None:
            return None
        return display_texts(self.source_tokenizer, self.source[0].tolist())

    @property
    def source_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of an encoder-decoder's source."""
        return self.tokenizer and self.tokenizer.for_source

    @staticmethod
    def _ids(leaf: Value | None) -> Tensor:
        return torch.zeros(1, 0).long() if leaf is None else read(leaf).reshape(1, -1)

    @property
    def tier(self) -> str:
        """``full``: every value is kept; ``part``: some are computed again when asked for."""
        return "full" if self.kept_all else "part"

    def shape(self, name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The shape of a value or a weight, and the names of its sides."""
        value = self.value(name)
        return value.shape, self.plan.axes(value)

    def card(self) -> JsonObject:
        """Facts about the model: its kind, sizes, and what can be asked of it."""
        return answers.module_card(
            self.module,
            self.tokenizer,
            source=self.source is not None,
            attention=any(op.is_attention for op in self.plan),
        )

    def program(self, most: int) -> tuple[JsonObject, JsonObject] | None:
        """A program that computes any text in a browser, and its weights, where these may fit in
        ``most`` bytes; None where the module has none."""
        return None

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the trace as one HTML file that opens without a server, or all of it as .safetensors.

        The page of a small model of ours holds the weights and computes any text, within
        ``computing`` bytes (5 MB); every other page holds numbers, 2 MB of them. ``computing=0``
        asks for numbers. ``cells``: addresses whose arithmetic these are to hold; ``most``: the bytes
        of the file; ``name``: of the model, as the file calls it.
        """
        return export.save(self, path, **options)

    def _repr_html_(self) -> str:
        """Notebook output: the page in a frame, with these numbers, alive after the kernel
        has gone."""
        return export.frame(self)


def _partial(change: Edit, index: Slices) -> Edit:
    def edit(value: Tensor) -> Tensor:
        value[index] = change(value[index])
        return value

    return edit


def _place(piece: str, size: int, subject: str) -> int | slice:
    if ":" in piece:
        start, _, end = piece.partition(":")
        return slice(*(_integer(end, subject) if end.strip() else None for end in (start, end)))
    at = _integer(piece, subject)
    if not -size <= at < size:
        raise UserError(f"{subject}; {at} is outside 0 to {size - 1}.")
    return at % size


def _integer(text: str, subject: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UserError(f'"{text}" is no index; give integers: {subject}.') from None


def check_module(module: nn.Module) -> None:
    """Raise UserError for a module that Python code does not compute, and for one inside it."""
    for path, submodule in module.named_modules():
        name = path or type(submodule).__name__
        if isinstance(submodule, torch.jit.ScriptModule):
            raise UserError(f"{name} is a scripted module; trace the module it was made from.")
        if (
            type(submodule).__name__ == "OptimizedModule"
            or submodule._compiled_call_impl is not None
        ):
            raise UserError(
                f"{name} is compiled; trace the original module, without torch.compile."
            )


def fields(output: Any) -> dict[str, Tensor]:
    """The tensors of a result by name: ``logits``, ``hidden_states.3``; ``output`` where it is one
    tensor."""
    if isinstance(output, Tensor):
        return {"output": output}
    start = "output." if isinstance(output, list | tuple) else ""
    if hasattr(output, "_asdict"):  # a named tuple
        output, start = output._asdict(), ""
    elif isinstance(output, list | tuple):
        output = dict(enumerate(output))
    elif not isinstance(output, Mapping):
        output = vars(output) if hasattr(output, "__dict__") else {}
    return named_tensors(output, start)


def named_tensors(structure: Mapping[Any, Any], start: str = "") -> dict[str, Tensor]:
    """The tensors inside of each entry by the path to them."""
    return {
        f"{start}{name}{''.join(f'.{_key(key)}' for key in path)}": leaf
        for name, entry in structure.items()
        for path, leaf in pytree.tree_leaves_with_path(entry)
        if isinstance(leaf, Tensor)
    }


def _key(key: Any) -> Any:
    return getattr(key, "idx", getattr(key, "key", getattr(key, "name", key)))


def _addresses(recorder: Recorder, returned: Mapping[str, Value]) -> dict[str, Value]:
    """Gives every value its address: module path and variable; the last value of a variable has no
    suffix, others their function and a number where it repeats.

    A value that no variable holds is called by the module that returns it; one that the model
    itself has a name for, by that.
    """
    values: dict[str, Value] = {}
    for leaf in recorder.leaves:
        leaf.address = leaf.address or f"constant.{len(values)}"
        values.setdefault(leaf.address, leaf)
    short: dict[str, Value] = {}
    nameless: set[Value] = set()
    for operation in recorder.operations:
        path, _, name, occurrence = operation.place
        for value in operation.outputs:
            variable = operation.line.variable(value.output, len(operation.outputs))
            output = 0 if variable else value.output
            words = (path, variable, name, occurrence if occurrence > 1 else 0, output)
            value.address = ".".join(str(word) for word in words if word)
            while value.address in values:
                value.address += "'"
            values[value.address] = value
            if variable:
                short[f"{path}.{variable}" if path else variable] = value
            else:
                nameless.add(value)
    short |= {name: value for name, value in returned.items() if value in nameless}
    for name, value in reversed(recorder.names.items()):  # the first of several names stays
        if value.operation is not None:
            values[name] = value
            value.address = name
    for name, value in short.items():
        holders = (recorder.names, recorder.modules, values)  # a layer's result has its path
        if not value.is_named and all(x.get(name, value) is value for x in holders):
            values[name] = value
            value.address = name
    return values
