"""config.json, in and out by one table a family: each word, the place in our config that it fills,
and its default. No torch.

A place is a dotted path of our config. ``dim`` is the model's, ``depth`` that of each of its stacks,
``attention.heads`` that of each block: the outermost that has it. What experts have in common with a
plain feed-forward stands below ``feedforward`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from ..core import config
from ..core.config import serial
from ..core.errors import need
from .recipe import MISSING, ConfigReader, Settings, tile

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
# The words of many families for a place.
PLACES = {
    word: place
    for place, words in {
        "dim": "hidden_size n_embd d_model dim",
        "depth": "num_hidden_layers n_layer n_layers num_layers",
        "attention.heads": "num_attention_heads n_head n_heads num_heads",
        "attention.kv_heads": "num_key_value_heads",
        "attention.head_dim": "head_dim",
        "attention.bias": "attention_bias",
        "feedforward.hidden": "intermediate_size hidden_dim ffn_dim d_ff",
        "feedforward.act": "hidden_act hidden_activation activation_function activation",
        "feedforward.bias": "mlp_bias",
        "feedforward.experts": "num_local_experts num_experts",
        "feedforward.top_k": "num_experts_per_tok",
        "feedforward.normalize": "norm_topk_prob",
        "feedforward.balance_loss": "router_aux_loss_coef",  # weighs our own load-balancing loss
        "norm.eps first_norm.eps last_norm.eps attention.qk_norm.eps": "rms_norm_eps norm_eps "
        "norm_epsilon layer_norm_eps layer_norm_epsilon",
        "context position.length": "max_position_embeddings",
        "embed.vocab": "vocab_size",
        "embed.segments": "type_vocab_size",
        "head.tied": "tie_word_embeddings",
        "init.std init.embed_std": "initializer_range init_std",
    }.items()
    for word in words.split()
}
# The largest integer of a place, by its last step.
INTEGERS = {
    step: most
    for most, steps in {
        64: "kernel",
        MOST_BLOCKS: "depth",
        MOST_HEADS: "heads head_dim experts top_k state_heads state groups key_heads value_heads "
        "key_dim value_dim content_dim rope_dim",
        MOST_HIDDEN: "hidden kv_rank q_rank",
        MOST_POSITIONS: "context length size original_context",
        MOST_TOKENS: "vocab",
        1 << 20: "dim segments buckets distance",
    }.items()
    for step in steps.split()
}
NUMBERS = {
    "eps": 1.0,
    "dropout": 0.99,
    "std": 10.0,
    "tolerance": 1e3,
}  # the largest of these, 1e12 of all else


@dataclass(frozen=True)
class Key:
    """A word of a config.json, and where our config has what it says.

    ``names``: the first is read, all are written. ``places``: all are set, the first is written, by
    ``write``.
    """

    names: str
    places: str
    parse: Callable[[ConfigReader], Any]
    write: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Section:
    """A thing that a table of keys cannot say of a config.json: ``decode`` puts it into a model,
    ``encode`` writes it."""

    names = places = ""

    decode: Callable[[ConfigReader, Any], Any] = lambda raw, model: model
    encode: Callable[[Any], Settings] = lambda model: {}


Entry: TypeAlias = Key | Section
E = TypeVar("E", Key, Section)


def key(names: str, default: Any = MISSING, places: str = "") -> Key:
    """The key of a word whose place says what it may be; ``places`` where a family's differ."""
    name = names.split()[0]
    places = places or PLACES[name]
    step = places.split()[0].rpartition(".")[2]
    if step == "act":
        return Key(names, places, lambda raw: raw.choice(name, ACTIVATIONS, default), act_name)
    if isinstance(default, bool):
        return Key(names, places, lambda raw: raw.flag(name, default))
    if step == "kv_heads":

        def grouped(raw: ConfigReader) -> Any:  # as many as heads where the file says null
            count = None if name in raw.table else default
            return raw.integer(name, count or raw.integer("num_attention_heads", most=MOST_HEADS))

        return Key(names, places, grouped)
    if step in INTEGERS:
        return Key(names, places, lambda raw: raw.integer(name, default, INTEGERS[step]))

    def number(raw: ConfigReader) -> Any:
        return raw.number(name, default, most=NUMBERS.get(step, 1e12))

    # where ours differs from matrix to matrix, transformers' own deviation
    usual = default if step == "std" else None
    return Key(names, places, number, lambda value: usual if value is None else value)


def experts_key(word: str, default: int) -> Key:
    """The number of experts by a family's ``word``, or by that of other files."""

    def count(raw: ConfigReader) -> Any:
        usual = raw.integer("num_local_experts", default, most=MOST_HEADS)
        return raw.integer(word, usual, most=MOST_HEADS)

    return Key(word, "experts", count)


def nullable(names: str, default: Any, places: str = "") -> Key:
    """A key whose word may be null, and that is its default only where the word is absent."""
    filled = key(names, default, places)
    empty = key(names, None, places)
    return replace(filled, parse=lambda raw: (empty if names in raw.table else filled).parse(raw))


def act_name(act: str) -> str:
    """The first of transformers' names for an activation."""
    names = {activation: name for name, activation in reversed(ACTIVATIONS.items())}
    need(act in names, f'A layout of this shape has no name for the activation "{act}".')
    return names[act]  # type: ignore[index]


def keys(needed: str = "", **words: Any) -> tuple[Key, ...]:
    """The keys of the words ``needed`` and of those with a default.

    ``word = default`` is a word that many families have; ``word = (default, places)`` fills places
    of its own, and a ``Key`` says all itself.
    """
    entries = (
        value
        if isinstance(value, Key)
        else key(name, *(value if isinstance(value, tuple) else (value,)))
        for name, value in words.items()
    )
    return (*map(key, needed.split()), *entries)


def revise(
    shared: Sequence[Entry], *more: Entry, without: str = "", needed: str = "", **words: Any
) -> tuple[Entry, ...]:
    """The entries ``shared`` but for those of the words ``without``, and a family's: each takes the
    place of the one that fills the same place of our config."""
    shared_entries = (entry for entry in shared if entry.names not in without.split())
    entries = (*shared_entries, *keys(needed, **words), *more)
    return tuple({entry.places or index: entry for index, entry in enumerate(entries)}.values())


def layer_keys(template: Any, **places: str | Key) -> tuple[Key, ...]:
    """The keys of a layer's words by their places in it; their defaults are the template's."""
    tree = serial.to_dict(template)
    words: Settings = dict(places)
    for word, place in places.items():
        if isinstance(place, str):
            usual = _walk(tree, place.split()[0].split("."))
            words[word] = usual and usual[1], place
    return keys(**words)


@dataclass(frozen=True)
class ConfigWords:
    """A family's config.json both ways: a model that all keys change at once, then section by section.

    ``defaults`` are words that a file may lack, ``older`` the words of older files and what they are
    called now.
    """

    template: Any
    entries: Sequence[Entry]
    defaults: Settings = field(default_factory=Settings)
    older: Mapping[str, str] = field(default_factory=Settings)

    def decode(self, raw: ConfigReader) -> Any:
        """The config.json as our config."""
        named = {now: raw.table[word] for word, now in self.older.items() if word in raw.table}
        raw = replace(raw, table={**self.defaults, **named, **raw.table})
        model = read_keys(raw, self.template, self._each(Key))
        for section in self._each(Section):
            model = section.decode(raw, model)
        return model

    def _each(self, kind: type[E]) -> list[E]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    def model(self, **words: Any) -> Any:
        """The config of a config.json with these words."""
        return self.decode(ConfigReader(words))

    def encode(self, model: Any) -> Settings:
        """Our config as a config.json, as far as that can say it."""
        raw = write_keys(model, self._each(Key))
        for section in self._each(Section):
            raw |= section.encode(model)
        return raw


def read_keys(raw: ConfigReader, model: Any, keys: Sequence[Key]) -> Any:
    """The model with what a config.json says."""
    return fill(model, [(entry.places, entry.parse(raw)) for entry in keys])


def fill(model: Any, values: Sequence[tuple[str, Any]]) -> Any:
    """The model with values at places, where it has them."""
    tree, changes = serial.to_dict(model), Settings()
    for places, value in values:
        for place in places.split():
            changes |= dict.fromkeys((path for path, _ in _homes(tree, place)), value)
    return serial.change(model, changes)


def write_keys(model: Any, keys: Sequence[Key]) -> Settings:
    """Settings of a config.json for the model; UserError where the model has nothing in a place."""
    tree, raw = serial.to_dict(spelled_out(model)), Settings()
    for entry in (entry for entry in keys if entry.names):
        place = entry.places.split()[0]
        homes = [value for _, value in _homes(tree, place)]
        need(
            bool(homes),
            f"No published layout of this shape holds a model without {place.rpartition('.')[0]}.",
        )
        raw |= dict.fromkeys(entry.names.split(), entry.write(homes[0]))
    return raw


def _homes(tree: Settings, place: str) -> list[tuple[str, Any]]:
    """The paths and values of a place: the model's, or its stacks', or their blocks'."""
    sides = [f"{side}." for side in ("encoder", "decoder") if side in tree]
    for prefixes in ([""], sides, [f"{side}pattern." for side in sides]):
        walks = (_walk(tree, f"{prefix}{place}".split(".")) for prefix in prefixes)
        if homes := [home for home in walks if home]:
            return homes
    return []


def _walk(node: Any, steps: list[str], path: str = "") -> tuple[str, Any] | None:
    """The path and value that these steps lead to, in the first block that has them, or else in the
    experts of a mixture."""
    if not steps:
        return path[1:], node
    if isinstance(node, list):
        homes = filter(None, (_walk(block, steps, path) for block in node))
        return min(homes, key=lambda home: len(home[0]), default=None)
    if not isinstance(node, dict):
        return None
    if steps[0] in node:
        return _walk(node[steps[0]], steps[1:], f"{path}.{steps[0]}")
    return _walk(node.get("expert"), steps, f"{path}.expert")


# ---------------------------------------------------------------- what means the same is written
# equally


def spelled_out(model: config.Model) -> config.Model:
    """The config, of a model or of a part, with the defaults of its blocks spelled out, so that two
    which mean the same are equal."""
    stacks = getattr(model, "stacks", {})
    spelled = {name: _spelled_stack(stack, model.dim) for name, stack in stacks.items()}
    return replace(model, **spelled)  # type: ignore[arg-type]


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
        replace(block, attention=spelled(block.attention), cross=spelled(block.cross))
        for block in stack.pattern
    ]
    return replace(
        stack, pattern=tile([blocks[i % len(blocks)] for i in range(stack.depth or len(blocks))])
    )
