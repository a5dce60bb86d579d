"""config.json, in and out by one table a family: each word and the places in our config that it
fills. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from ..core import config
from ..core.config import serial
from ..core.errors import UserError, need
from .recipe import MISSING, ConfigReader, tile

M = TypeVar("M")
# heads, dimensions a head, experts; hidden: far above any published
MOST_HEADS, MOST_HIDDEN = 1 << 14, 1 << 22
MOST_BLOCKS, MOST_POSITIONS, MOST_TOKENS = 2000, 1 << 28, 1 << 24  # blocks, positions, tokens

# What transformers calls its activations, the one written first.
ACTIVATIONS: dict[str, config.Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Key:
    """A word of a config.json, and where our config has what it says: dotted paths, as overrides
    have them.

    ``names``: the first is read, all are written. ``places``: all are set, the first is written, by
    ``write``.
    """

    names: str
    places: str
    parse: Callable[[ConfigReader], Any]
    write: Callable[[Any], Any] = lambda value: value

    @classmethod
    def integer(cls, names: str, places: str, default: Any = MISSING, most: int = 1 << 20) -> Key:
        """An integer from 1 to ``most``."""
        return cls(names, places, lambda raw: raw.integer(names.split()[0], default, most))

    @classmethod
    def number(cls, names: str, places: str, default: Any = MISSING, most: float = 1e12) -> Key:
        """A finite number from 0 to ``most``."""
        return cls(names, places, lambda raw: raw.number(names.split()[0], default, most=most))

    @classmethod
    def flag(cls, name: str, places: str, default: bool) -> Key:
        """True or false."""
        return cls(name, places, lambda raw: raw.flag(name, default))

    @classmethod
    def activation(
        cls, names: str, places: str, default: str, options: Mapping[str, Any] = ACTIVATIONS
    ) -> Key:
        """Name of an activation."""

        def write(act: str) -> str:
            if act not in ACTIVATIONS.values():
                raise UserError(f'A layout of this shape has no name for the activation "{act}".')
            return next(name for name, act_name in ACTIVATIONS.items() if act_name == act)

        return cls(names, places, lambda raw: raw.choice(names.split()[0], options, default), write)

    @classmethod
    def only(cls, name: str, allowed: Any, reason: str) -> Key:
        """Nothing of ours: what no module here does is refused, as ``ConfigReader.only`` says."""
        return cls("", "", lambda raw: raw.only(name, allowed, reason))

    @classmethod
    def std(cls, name: str) -> Key:
        """Standard deviation of initial weights; transformers' own number where ours differs from
        matrix to matrix."""
        parse = cls.number(name, "init.std init.embed_std", 0.02, most=10.0).parse
        return cls(name, "init.std init.embed_std", parse, lambda std: 0.02 if std is None else std)


def read_keys(raw: ConfigReader, model: M, keys: Sequence[Key]) -> M:
    """The model with what a config.json says."""
    values = [(key.places.split(), key.parse(raw)) for key in keys]
    return serial.change(model, {place: value for places, value in values for place in places})


def write_keys(model: config.Model, keys: Sequence[Key]) -> dict[str, Any]:
    """Settings of a config.json for the model; UserError where the model has nothing in a place."""
    tree = serial.to_dict(spelled_out(model))
    return {
        name: key.write(_at(tree, key.places.split()[0]))
        for key in keys
        for name in key.names.split()
    }


def read_part(raw: ConfigReader, default: M, words: Mapping[str, str]) -> M:
    """A part of a model with what a config.json says: ``words`` and the places in it that they fill
    with values of the same type; ``default`` has those of a file that does not say."""
    tree = serial.to_dict(default)
    readers: dict[type, Callable[..., Any]] = {bool: raw.flag, float: raw.number}
    readers[int] = partial(raw.integer, most=MOST_HIDDEN)
    values = {place: (word, _at(tree, place)) for word, place in words.items()}
    return serial.change(
        default,
        {place: readers[type(value)](word, value) for place, (word, value) in values.items()},
    )


def write_part(value: Any, words: Mapping[str, str]) -> dict[str, Any]:
    """The words for a part of a model."""
    tree = serial.to_dict(value)
    return {word: _at(tree, place) for word, place in words.items()}


def _at(node: Any, place: str) -> Any:
    for step in place.split("."):
        # the first block, for what all have in common
        node = node[0] if isinstance(node, list) else node
        if isinstance(node, dict) and step not in node:
            node = node.get("expert")  # stands for the mixture
        if not isinstance(node, dict) or step not in node:
            raise UserError(
                "No published layout of this shape holds a model without "
                f"{place.rpartition('.')[0]}."
            )
        node = node[step]
    return node


def read_start(raw: ConfigReader, default: int | None = None) -> tuple[int, ...]:
    """First tokens of a target: ``default`` where the file lacks the word; () is the tokenizer's.

    The second is the one that transformers forces: a translation's language.
    """
    first = raw.table.get("decoder_start_token_id", default)
    forced = raw.value("forced_bos_token_id", None)
    for key, id in (("decoder_start_token_id", first), ("forced_bos_token_id", forced)):
        fits = id is None or (type(id) is int and 0 <= id < raw.integer("vocab_size"))
        raw.must(fits, key, "the id of a token")
    raw.must(first is not None or forced is None, "forced_bos_token_id", "after a first token")
    return () if first is None else (first,) if forced is None else (first, forced)


def write_start(model: Any) -> dict[str, Any]:
    """Words of a config.json for what a target begins with."""
    start = getattr(model, "start", ())
    words = ("decoder_start_token_id", "forced_bos_token_id")
    need(len(start) <= len(words), f"No published layout begins a target with {len(start)} tokens.")
    return dict(zip(words, start, strict=False))


# ---------------------------------------------------------------- what means the same is written
# equally


def spelled_out(model: config.Model) -> config.Model:
    """The config with the defaults of its blocks spelled out, so that two which mean the same are
    equal."""
    stacks: dict[str, Any] = {
        name: _spelled_stack(stack, model.dim) for name, stack in config.stacks(model).items()
    }
    return replace(model, **stacks)


def _spelled_stack(stack: config.Stack, dim: int) -> config.Stack:
    def spelled(attention: Any) -> Any:
        if not isinstance(attention, config.Attention):
            return attention
        width = attention.width(dim)
        return replace(
            attention,
            kv_heads=attention.kv_heads or attention.heads,
            head_dim=width,
            out_bias=attention.bias if attention.out_bias is None else attention.out_bias,
            scale=width**-0.5 if attention.scale is None else attention.scale,
        )

    blocks = [
        replace(
            block,
            attention=spelled(block.attention),
            cross=spelled(block.cross) if block.cross else None,
        )
        for block in stack.pattern
    ]
    return replace(
        stack, pattern=tile([blocks[i % len(blocks)] for i in range(stack.depth or len(blocks))])
    )
