"""Models as GGUF files describe them (llama.cpp's format): their fields and tensors' names, in and
out. No torch here.

gguf_architectures.json              which field is which word of a family's config.json
blk.0.attn_q.weight ..               Llama's queries and keys with rotary pairs side by side, others as published
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import config
from ..core.config import serial
from ..core.config.scaling import LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from ..core.errors import need
from ..families import RECIPES, differences, plain
from ..families import read_config as read_published
from ..families import write_config as write_published
from ..families.decoder_pages import KINDS, rotary_of, write_scaling
from ..families.names import NameRule, Table

Fields = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
Factors = Mapping[str, Sequence[float]]
DATA = json.loads(Path(__file__).with_name("gguf_architectures.json").read_text("utf-8"))
"""``architectures``: of each way to describe a family, its ``recipe`` and ``architecture`` (its name
where nothing is said) and

shared, words  words of the config.json by their fields; a dot leads into a table
defaults       what an absent field means: a value, or the field whose value it has
constants      words that no field says: a value, or a product of words and fields
scaling        where the scaling of rotary positions stands in the config.json (rope_scaling)
present        words that are true where the file holds a tensor
if             fields that must be so for this way to be chosen (true: there, and not zero)
only           "read" or "write", where it goes one way
written        fields that follow from others, and are written beside them: products of words and fields
filled         fields that always have a value here
kinds          what layer_types calls blocks of which a list of numbers is 0, and the others
names          tensors that llama.cpp's table calls otherwise, or deals out to several
turned         tensors that lie otherwise: axes, and what they hold of a number
rotated        queries and keys lie with rotary pairs side by side
offset         gains are written as 1 + gain

``harmless`` are fields that change nothing, by a regex; ``usual`` the values that others may have.
"""
FACTORS = "rope_freqs.weight"  # what each rotary frequency is divided by
LONG_FACTORS = {"long": "rope_factors_long.weight", "short": "rope_factors_short.weight"}
SCALINGS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
"""Words of a rope_scaling by their fields, below rope.scaling."""
ATTN_FACTOR, LENGTH = "rope.scaling.attn_factor", "rope.scaling.original_context_length"
SHARES = ("partial_rotary_factor", "rotary_pct")  # of a head that turns
REAL = re.compile(
    r".*(epsilon|scale|softcapping|freq_base(_swa)?|factor|beta_\w+|alibi_bias|clamp_kqv)"
)


def _way(name: str) -> Fields:
    """One way to describe a family, all of its words in one table."""
    way = DATA["architectures"][name]
    way = DATA["architectures"].get(way.get("like"), {}) | way
    recipe = way.get("recipe", name)
    words = {
        word: field
        for group in (*way.get("shared", "").split(), *["more"] * ("words" in way))
        for word, field in (way["words"] if group == "more" else DATA["shared"][group]).items()
    }
    defaults = DATA["defaults"] | way.get("defaults", {})
    return {"architecture": name, **way, "recipe": recipe, "all": words, "unsaid": defaults}


WAYS = [_way(name) for name in DATA["architectures"]]
ARCHITECTURES = list(dict.fromkeys(way["architecture"] for way in WAYS))


# -------------------------------------------------------------------------------------- reading


def read_config(
    fields: Mapping[str, Any], shapes: Shapes, factors: Factors, source: str
) -> tuple[config.Model, Fields]:
    """Our config of a file's fields and tensors, and the way it is described; ``factors`` are the
    numbers of FACTORS and LONG_FACTORS. UserError for what is not read."""
    kind = fields.get("general.architecture")
    need(kind is not None, f"{source} lacks general.architecture; copy or convert it again.")
    need(
        kind in ARCHITECTURES,
        f'{source} holds the architecture "{str(kind)[:40]}"; only {", ".join(ARCHITECTURES)} are '
        "read here.",
    )
    said = {
        key.removeprefix(f"{kind}."): (float(f"{value:.7g}") if isinstance(value, float) else value)
        for key, value in fields.items()
        if key.startswith(f"{kind}.")
    }
    if type(later := said.get("nextn_predict_layers")) is int and "block_count" in said:
        said["block_count"] -= later
    way = next(way for way in WAYS if way["architecture"] == kind and _fits(way, said))
    raw: Fields = {"architectures": [RECIPES[way["recipe"]].architectures[0]]}
    raw |= {word: name in shapes for word, name in way.get("present", {}).items()}
    table = shapes.get("token_embd.weight", ())
    need(len(table) == 2, f"{source} has no token_embd.weight; convert the model again.")
    raw |= {"vocab_size": table[0], "tie_word_embeddings": "output.weight" not in shapes}
    for word, field in way["all"].items():
        value = said.get(field, way["unsaid"].get(field, ...))
        value = said.get(value) if isinstance(value, str) else value
        optional = field in ("attention.key_length", "attention.sliding_window_pattern")
        need(
            value is not ... or optional, f"{source} lacks {kind}.{field}; convert the model again."
        )
        if value is not ...:
            _put(raw, word, _from_field(word, value, said, way))
    if "head_dim" in way["all"].keys() - raw.keys():
        raw["head_dim"] = _width(said)
    scaling = _read_scaling(said, factors, source)
    for word, value in (scaling or {}).items():
        _put(raw, f"{way.get('scaling', 'rope_scaling')}.{word}", value)
    for word, value in way.get("constants", {}).items():
        if "." not in word or word.partition(".")[0] in raw:
            _put(raw, word, _product(value, {**said, **raw}))
    read = {
        ATTN_FACTOR,
        *way["all"].values(),
        *(f"rope.scaling.{word}" for word in ("type", *SCALINGS.values())),
    }
    written = DATA["written"] | way.get("written", {})
    usual = DATA["usual"] | {
        name: _product(value, {**said, **raw}) for name, value in written.items()
    }
    usual |= way.get("filled", {})
    for field, value in said.items():
        plain_value = value == usual[field] if field in usual else value in (None, 0, 1.0, False)
        need(
            field in read or plain_value or re.fullmatch(DATA["harmless"], field),
            f"{source} says {kind}.{field} is {str(value)[:40]}, which is not read from GGUF here.",
        )
    return read_published(raw, source)[1], way


def _fits(way: Fields, said: Fields) -> bool:
    """True where a file's fields are described in this way."""
    return way.get("only") != "write" and all(
        bool(said.get(field)) if value is True else said.get(field) == value
        for field, value in way.get("if", {}).items()
    )


def _put(raw: Fields, path: str, value: Any) -> None:
    """Set a word, in a table where dots lead there."""
    outer, _, word = path.rpartition(".")
    table = raw
    for name in filter(None, outer.split(".")):
        table = table.setdefault(name, {})
    table[word] = value


def _get(raw: Fields, path: str) -> Any:
    """The word at a path, None where there is none."""
    value: Any = raw
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _width(said: Fields) -> Any:
    """The width of a head."""
    try:
        return (
            said.get("attention.key_length")
            or said["embedding_length"] // said["attention.head_count"]
        )
    except (KeyError, TypeError, ZeroDivisionError):
        return None


def _product(value: Any, numbers: Fields) -> Any:
    """A value, or what words and fields give that it multiplies and divides; None where one is no
    number."""
    if not isinstance(value, str):
        return value
    first, *rest = (
        int(name)
        if name.isdigit()
        else name
        if name in "*/"
        else numbers.get(name, _width(numbers))
        for name in value.split()
    )
    for sign, other in zip(rest[::2], rest[1::2], strict=True):
        if not (isinstance(first, int) and isinstance(other, int) and other > 0):
            return None
        first = first * other if sign == "*" else first // other
    return first


def _from_field(word: str, value: Any, said: Fields, way: Fields) -> Any:
    """A word's value, of its field's."""
    if isinstance(value, list) and word == "layer_types":
        return [way.get("kinds", KINDS)[bool(number)] for number in value]
    if isinstance(value, list) and word == "num_key_value_heads":
        return max(value, default=0)
    if word == "sliding_window":
        return value or None  # 0: none
    if word in SHARES and isinstance(value, int) and _width(said):
        return value / _width(said)
    return value


def _read_scaling(said: Fields, factors: Factors, source: str) -> Fields | None:
    """The ``rope_scaling`` of a file, None where it has none."""
    if FACTORS in factors:
        return _llama3(factors[FACTORS], said, source)
    kind = said.get("rope.scaling.type", "linear" if "rope.scaling.factor" in said else "none")
    table = {
        word: said[f"rope.scaling.{field}"]
        for word, field in SCALINGS.items()
        if f"rope.scaling.{field}" in said
    }
    if LONG_FACTORS["long"] in factors:
        table = {f"{name}_factor": list(factors[file]) for name, file in LONG_FACTORS.items()}
        size, length = said.get(ATTN_FACTOR), said.get(LENGTH) or 2
        usual = long_factor(said.get("context_length", length) / length, length)
        table |= {} if size is None or abs(size / usual - 1) < 1e-5 else {"attention_factor": size}
        return {"rope_type": "longrope", **table}
    return None if kind == "none" or not table else {"rope_type": kind, **table}


def _llama3(factors: Sequence[float], said: Fields, source: str) -> Fields:
    """The Llama 3 scaling whose factors these are."""
    width, theta = _width(said) or 1, said.get("rope.freq_base", 10_000.0)
    most = float(f"{max(max(factors), 1.0):.7g}")  # the lowest frequency's is whole
    scaling = Llama3Scaling(most)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    for pair, factor in enumerate(factors):
        if 1.0 < factor < most:  # one that is blended says the length: llama3_factors, turned round
            turns = low + (high - low) * (1 / factor - 1 / most) / (1 - 1 / most)
            length = round(turns * 2 * math.pi * theta ** (2 * pair / width))
            scaling = replace(scaling, original_context=max(length, 1))
            break
    expected = llama3_factors(scaling, width, theta)
    need(
        len(expected) == len(factors)
        and all(abs(a / b - 1) < 1e-3 for a, b in zip(factors, expected, strict=True)),
        f"{source} divides rotary frequencies by factors of its own ({FACTORS}), not by Llama "
        "3's; fetch hf.",
    )
    return write_scaling(scaling) or {}


def llama3_factors(scaling: Llama3Scaling, width: int, theta: float) -> list[float]:
    """Divisors of a head's width / 2 frequencies."""
    divisors = []
    for pair in range(width // 2):
        turns = scaling.original_context / (2 * math.pi * theta ** (2 * pair / width))
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        smooth = min(max((turns - low) / max(high - low, 1e-9), 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return divisors


def long_factor(factor: float, length: int) -> float:
    """What LongRoPE multiplies queries and keys by, where a file says nothing."""
    return math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0


# -------------------------------------------------------------------------------------- writing


def write_fields(model: config.Model, family: str = "") -> tuple[Fields, Factors, Fields]:
    """The fields that describe a model, the architecture first, the factors of its rotary
    frequencies, and the way it is described."""
    recipe, raw = write_published(model, family)
    ways = [way for way in WAYS if way["recipe"] == recipe.name and way.get("only") != "read"]
    need(
        bool(ways),
        f"A GGUF file holds {', '.join(ARCHITECTURES)} as written here, not {recipe.name}; save it as hf.",
    )
    way, fields = ways[-1], dict(ways[-1].get("filled", {}))
    raw["rope_theta"] = raw.get("rope_theta", rotary_of(model).theta)
    for word, field in way["all"].items():
        value = _to_field(word, _get(raw, word), raw, way)
        if value is not None:
            fields[field] = float(value) if REAL.fullmatch(field) else value
    fields["vocab_size"] = raw["vocab_size"]
    width, factors = _width(fields), {}
    fields |= {
        field: _product(value, {**raw, **fields}) for field, value in way.get("written", {}).items()
    }
    scaling = rotary_of(model).scaling
    match scaling:
        case Llama3Scaling():
            factors = {FACTORS: llama3_factors(scaling, width, fields["rope.freq_base"])}
        case LinearScaling() | YarnScaling():
            table = write_scaling(scaling) or {}
            fields["rope.scaling.type"] = table["rope_type"]
            fields |= {
                f"rope.scaling.{field}": table[word]
                for word, field in SCALINGS.items()
                if word in table
            }
        case LongRopeScaling():
            factors = {file: getattr(scaling, name) for name, file in LONG_FACTORS.items()}
            usual = long_factor(scaling.factor, scaling.original_context)
            fields[ATTN_FACTOR] = scaling.attention_factor or usual
    kind = way["architecture"]
    return (
        {"general.architecture": kind} | {f"{kind}.{key}": value for key, value in fields.items()},
        factors,
        way,
    )


def _to_field(word: str, value: Any, raw: Fields, way: Fields) -> Any:
    """A field's value, of its word's."""
    if word == "layer_types" and "kinds" in way:
        return [raw["num_key_value_heads"] * way["kinds"].index(kind) for kind in value]
    if word == "layer_types":
        slides = [kind == "sliding_attention" for kind in value or ()]
        return slides if any(slides) else None
    if word in SHARES:
        width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        return int(value * width)
    return value


def check(model: config.Model, fields: Fields, shapes: Shapes, factors: Factors) -> Fields:
    """The way in which a file describes the model; UserError for what its fields do not say.

    FACTORS say all of a scaling, also where ``read_config`` cannot name it.
    """
    kind, whole = fields["general.architecture"], FACTORS in factors
    back, way = read_config(fields, shapes, {} if whole else factors, "The file")
    sides = (serial.to_dict(plain(side)) for side in (model, back))
    for path, value, read in differences(*sides):
        name = path.rpartition(".")[2]
        near = isinstance(value, float) and isinstance(read, float)
        need(
            name in ("dropout", "balance_loss")
            or (whole and name == "scaling")
            or (near and math.isclose(value, read, rel_tol=1e-6)),  # fp32 in the file
            f"llama.cpp's {kind} has no words for {path} = {str(value)[:60]}; save it as hf.",
        )
    return way


def is_later(name: str, model: config.Model) -> bool:
    """True for a tensor of a block after the model's last, which predicts later tokens."""
    block = re.match(r"blk\.(\d+)\.", name)
    return block is not None and int(block[1]) >= config.stacks(model)["decoder"].depth


def table(model: config.Model, way: Fields) -> Table:
    """The names of the tensors of an architecture, and how they lie: the family's own table by
    llama.cpp's names for what is published."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    heads = {}
    for block in config.stacks(model)["decoder"].pattern:
        layer = block.attention
        if isinstance(layer, config.Attention):
            heads |= {"attn_q": layer.heads, "attn_k": layer.kv_heads or layer.heads}
        heads["ssm_norm"] = getattr(layer, "groups", heads.get("ssm_norm", 1))
    architectures = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(architectures[way["architecture"]], 1)
    renamed = []
    for rule in RECIPES[way["recipe"]].table(model).rules:
        for name, params in _names(rule, way, names):
            plain_name = name.removeprefix("blk.{i}.")
            layer, _, end = plain_name.partition(".")
            axes = rule.axes if params == rule.param_names else ""
            axes, numbers = (*way.get("turned", {}).get(plain_name, [axes]), "")[:2]
            if layer in ("attn_q", "attn_k") and way.get("rotated"):
                axes = {"weight": "(h d 2) c -> (h 2 d) c", "bias": "(h d 2) -> (h 2 d)"}[end]
            if way.get("offset") and plain_name.endswith("norm.weight"):
                numbers = "1 + x"
            count = heads.get(layer, rule.heads)
            renamed.append(NameRule(name, params, axes=axes, heads=count, numbers=numbers))
    copies = (("output.weight", "token_embd.weight"),)
    return Table(tuple(renamed), ignore=(FACTORS, *LONG_FACTORS.values()), copies=copies)


def _names(rule: NameRule, way: Fields, names: Any) -> list[tuple[str, str | tuple[str, ...]]]:
    """What llama.cpp calls the tensors of a rule, and the parameters in each."""
    for end, name in way.get("names", {}).items():
        if rule.file_name.endswith("." + end) and isinstance(name, list):
            return [
                (f"blk.{{i}}.{one}", param) for one, param in zip(name, rule.params, strict=True)
            ]
        if rule.file_name.endswith("." + end):
            return [(f"blk.{{i}}.{name}", rule.param_names)]
    published = rule.file_name.replace("{i}", "0").replace(".{e}", "")
    for spelling in (published, published.partition(".")[2]):
        if name := names.get_name(spelling, (".weight", ".bias")):
            return [(name.replace("blk.0.", "blk.{i}."), rule.param_names)]
    return []
