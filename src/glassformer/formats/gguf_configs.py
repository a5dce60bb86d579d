"""Models as GGUF files describe them (llama.cpp's format): their fields and tensors' names, in and
out. No torch here.

gguf_architectures.json              which field is which word of a family's config.json
blk.0.attn_q.weight ..               Llama's queries and keys with rotary pairs side by side, others as published
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import config
from ..core.config import serial
from ..core.config.pool import Pool
from ..core.config.scaling import LinearScaling, Llama3Scaling, LongRopeScaling, YarnScaling
from ..core.errors import UserError, need
from ..families import RECIPES, plain
from ..families import read_config as read_published
from ..families import write_config as write_published
from ..families.decoder_pages import (
    KINDS,
    blocks_of,
    first_layer,
    rotary_of,
    stack,
    write_scaling,
)
from ..families.differences import differences
from ..families.keys import MOST_BLOCKS
from ..families.latent import LatentAttention
from ..families.mixers import GatedDelta
from ..families.names import NameRule, Table
from .file_rule import FileRule

Fields = dict[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
Factors = Mapping[str, Sequence[float]]
DATA = json.loads(Path(__file__).with_name("gguf_architectures.json").read_text("utf-8"))
"""``architectures``: of each entry, which describes a family, its ``recipe`` and ``architecture`` (its name
where nothing is said) and

shared, words  words of the config.json by their fields
defaults       what an absent field means: a value, or a product of fields
constants      words that no field says: a value, or a product of words and fields
yarn           words of the config.json's rope_scaling that no field says
present        words that are true where the file holds a tensor ({i}: of any block): its name, or a list of
               it and of what the word is without it and with it
if             fields and tensors that must be so for the entry to read a file (true: there, and not zero)
when           the same of words, for the entry to write a model; of a list, what must be in it
only           "read" or "write", where it goes one direction
written        fields that follow from others, and are written beside them: products of words and fields
unwritten      what fields are that are not written then
filled         fields that always have a value here
kinds          what layer_types calls blocks of which a list of numbers is 0, and the others; third,
               in layers_block_type, feed-forward layers
names          tensors that llama.cpp's table calls otherwise, by the ends of the published names
parameters     the same by the ends of our own names, where a published tensor is several here
dealt          tensors whose rows lie dealt out to heads, as published
turned         tensors that lie otherwise: axes, of which r are value heads of a key head, and what they
               hold of a number
tiled          tensors whose last rows lie so that key heads take turns
class          the architecture in transformers, where it is not the family's first
values         what a field may say, where llama.cpp takes the first of them for any other value
rows           words that are the length of a tensor
rotated        queries and keys lie with rotary pairs side by side
unread         tensors that nothing ever reads
offset         gains are written as 1 + gain

``harmless`` is a regex of fields, of all entries and of one, that change nothing or are read beside
the words, ``written`` the values that others must have. A text between quotes is itself.
"""
FACTORS = "rope_freqs.weight"  # what each rotary frequency is divided by
LONG_FACTORS = {"long": "rope_factors_long.weight", "short": "rope_factors_short.weight"}
SCALINGS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}
"""Words of a rope_scaling by their fields, below rope.scaling."""
BLOCK = r"(?:(?<=\.layers\.)|(?<=block\.))\d+(?=\.)"  # its number in a published name
OPERATIONS = {"*": operator.mul, "/": operator.floordiv, "+": operator.add, "-": operator.sub}
ATTN_FACTOR, LENGTH = "rope.scaling.attn_factor", "rope.scaling.original_context_length"
POOLING = "pooling_type"
POOLS: dict[Any, Any] = {1: "mean", 2: "first", 3: "last"}
"""Which vector stands for a text, by llama.cpp's pooling_type."""
THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
"""Words of one theta each, by the table of a config.json's rope_parameters that says it."""
EVERY = "global_attn_every_n_layers"  # of layer_types
SHARES = ("partial_rotary_factor", "rotary_pct")  # of a head that turns
REAL = re.compile(
    r".*(epsilon|scale|softcapping|freq_base(_swa)?|factor|multiplier|beta_\w+|alibi_bias|clamp_kqv)"
)


def _entry(name: str) -> Fields:
    """An entry, all of its words in one table."""
    entry = DATA["architectures"][name]
    entry = DATA["architectures"].get(entry.get("like"), {}) | entry
    recipe = entry.get("recipe", name)
    words = {
        word: field
        for group in (*entry.get("shared", "").split(), *["more"] * ("words" in entry))
        for word, field in (entry["words"] if group == "more" else DATA["shared"][group]).items()
    }
    defaults = DATA["defaults"] | entry.get("defaults", {}) | entry.get("unwritten", {})
    return {"architecture": name, **entry, "recipe": recipe, "all": words, "absent": defaults}


ENTRIES = [_entry(name) for name in DATA["architectures"]]
ARCHITECTURES = list(dict.fromkeys(entry["architecture"] for entry in ENTRIES))


# -------------------------------------------------------------------------------------- reading


def read_config(
    fields: Mapping[str, Any], shapes: Shapes, factors: Factors, source: str
) -> tuple[config.Model, Fields]:
    """Our config of a file's fields and tensors, and the entry that describes it; ``factors`` are
    the numbers of FACTORS and LONG_FACTORS. UserError for what is not read."""
    try:
        return _read_config(fields, shapes, factors, source)
    except UserError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UserError(
            f"{source} has a field of another type than its name says, or lacks what belongs to "
            f"another ({str(error)[:80]}); convert the model again."
        ) from None


def _read_config(
    fields: Mapping[str, Any], shapes: Shapes, factors: Factors, source: str
) -> tuple[config.Model, Fields]:
    kind = fields.get("general.architecture")
    need(kind is not None, f"{source} lacks general.architecture; copy or convert it again.")
    need(
        kind in ARCHITECTURES,
        f'{source} holds the architecture "{str(kind)[:40]}"; only {", ".join(ARCHITECTURES)} are '
        "read here.",
    )
    values = {
        key.removeprefix(f"{kind}."): (float(f"{value:.7g}") if isinstance(value, float) else value)
        for key, value in fields.items()
        if key.startswith(f"{kind}.")
    }
    if type(later := values.get("nextn_predict_layers")) is int and "block_count" in values:
        values["block_count"] -= later
    entries = (entry for entry in ENTRIES if entry["architecture"] == kind)
    facts = {**shapes, **values}
    entry: Any = next((entry for entry in entries if _fits(entry, facts, "if", "write")), None)
    need(
        entry is not None,
        f"{source} holds a {kind} of another form than GGUF files here have; use hf files.",
    )
    raw: Fields = {"architectures": [entry.get("class", RECIPES[entry["recipe"]].architectures[0])]}
    names = {*shapes, *(re.sub(r"^blk\.\d+", "blk.{i}", name) for name in shapes)}
    for word, tensor in entry.get("present", {}).items():
        name, *sides = [tensor] if isinstance(tensor, str) else tensor
        raw[word] = (sides or (False, True))[name in names]
    raw |= {word: (*shapes.get(name, ()), 0)[0] for word, name in entry.get("rows", {}).items()}
    table = shapes.get("token_embd.weight", ())
    need(len(table) == 2, f"{source} has no token_embd.weight; convert the model again.")
    raw |= {"vocab_size": table[0], "tie_word_embeddings": "output.weight" not in shapes}
    for word, field in entry["all"].items():
        need(
            field in values or field in entry["absent"],
            f"{source} lacks {kind}.{field}; convert the model again.",
        )
        value = values.get(field, _product(entry["absent"].get(field), values))
        if value is not None or word != "layer_types":
            raw[word] = _from_field(word, value, values, entry)
    if scaling := _read_scaling(values, factors, source):
        raw["rope_scaling"] = scaling | entry.get("yarn", {})
    for word, value in entry.get("constants", {}).items():
        raw[word] = _product(value, {**values, **raw})
    written = DATA["written"] | entry.get("written", {}) | entry.get("filled", {})
    fitting = {name: _product(value, {**values, **raw}) for name, value in written.items()}
    pool = POOLS.get(values.get(POOLING))
    harmless = [DATA["harmless"], entry.get("harmless", "")]
    for field, value in values.items():
        if REAL.fullmatch(field) and not isinstance(value, float):
            raise TypeError(field)
        fits = value == fitting[field] if field in fitting else value in (None, 0, 1.0, False)
        covered = field in entry["all"].values() or (field == POOLING and pool)
        covered = covered and value in entry.get("values", {}).get(field, [value])
        need(
            fits or bool(covered or any(re.fullmatch(regex, field) for regex in harmless)),
            f"{source} says {kind}.{field} is {str(value)[:40]}, which is not read from GGUF here.",
        )
    model: Any = read_published(raw, source)[1]
    # llama.cpp's programs give vectors of length 1, of which its files do not speak
    return (replace(model, pool=Pool(pool, normalize=True)) if pool else model), entry


def _fits(entry: Fields, values: Fields, condition: str, opposite: str) -> bool:
    """True where a file's fields and tensors or a config.json's words are as an entry that does not only go the
    ``opposite`` direction has them in its ``condition``."""
    return entry.get("only") != opposite and all(
        value in present
        if isinstance(present := values.get(name), list)
        else (bool(present) if value is True else present == value)
        for name, value in entry.get(condition, {}).items()
    )


def _width(values: Fields) -> Any:
    """The width of a head, None where nothing says it."""
    usual = "embedding_length / attention.head_count"
    return values.get("attention.key_length") or _product(usual, values)


def _product(value: Any, numbers: Fields) -> Any:
    """A value, or what words and fields give that it computes with, from left to right; None where
    one is no number."""
    if not isinstance(value, str):
        return value
    if value.startswith("'"):
        return value.strip("'")
    result, *more = (
        int(name) if name.isdigit() else _width(numbers) if name == "width" else numbers.get(name)
        for name in re.split(r" [-+*/] ", value)
    )
    for sign, number in zip(re.findall(r" ([-+*/]) ", value), more, strict=True):
        if not (isinstance(result, int) and isinstance(number, int) and number > 0):
            return None
        result = OPERATIONS[sign](result, number)
    return result


def _from_field(word: str, value: Any, values: Fields, entry: Fields) -> Any:
    """A word's value, of its field's."""
    kinds = entry.get("kinds", KINDS)
    depth = min(values.get("block_count", 0), MOST_BLOCKS)
    if word == "layer_types" and "kinds" in entry and isinstance(value, int):
        value = [value] * depth
    if isinstance(value, list) and word == "layer_types":
        return [kinds[bool(number)] for number in value[:depth]]
    if isinstance(value, list) and word == "layers_block_type":
        pairs = zip(value[:depth], values.get("feed_forward_length", ()), strict=False)
        return [kinds[1 if heads else 2 if hidden else 0] for heads, hidden in pairs]
    if isinstance(value, list) and word in ("num_key_value_heads", "intermediate_size"):
        return max(value, default=0) or 1
    if word == "moe_layers":
        return list(range(value - 1, depth, value))
    if word == "sliding_window":
        return value or None  # 0: none
    if word in SHARES and isinstance(value, int) and (width := _width(values)):
        return value / width
    return value


def _read_scaling(values: Fields, factors: Factors, source: str) -> Fields | None:
    """The ``rope_scaling`` of a file, None where it has none."""
    if FACTORS in factors:
        return _llama3(factors[FACTORS], values, source)
    kind = values.get("rope.scaling.type", "linear" if "rope.scaling.factor" in values else "none")
    table = {
        word: values[f"rope.scaling.{field}"]
        for word, field in SCALINGS.items()
        if f"rope.scaling.{field}" in values
    }
    if tenth := table.get("mscale_all_dim"):  # a habit of llama.cpp's
        table |= dict.fromkeys(("mscale", "mscale_all_dim"), round(tenth / 0.1, 6))
    if LONG_FACTORS["long"] in factors:
        table = {f"{name}_factor": list(factors[file]) for name, file in LONG_FACTORS.items()}
        size: Any = values.get(ATTN_FACTOR)
        length = values.get(LENGTH) or 2
        context: Any = values.get("context_length", length)
        usual = long_factor(context / length, length)
        table |= {} if size is None or abs(size / usual - 1) < 1e-5 else {"attention_factor": size}
        return {"rope_type": "longrope", **table}
    return None if kind == "none" or not table else {"rope_type": kind, **table}


def _llama3(factors: Sequence[float], values: Fields, source: str) -> Fields:
    """The Llama 3 scaling whose factors these are."""
    width = _width(values) or 1
    theta = values.get("rope.freq_base", 10_000.0)
    most = float(f"{max(max(factors), 1.0):.7g}")  # the lowest frequency's is whole
    usual = scaling = Llama3Scaling(most)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    for pair, factor in enumerate(factors):
        if 1.0 < factor < most:  # one that is blended says the length: llama3_factors, turned round
            turns = low + (high - low) * (1 / factor - 1 / most) / (1 - 1 / most)
            length = round(turns * 2 * math.pi * theta ** (2 * pair / width))
            scaling = replace(scaling, original_context=max(length, 1))
            break
    # ends that meet, as Llama 4's: any length between those of two frequencies says the same
    between = round(2 * math.pi * theta ** ((2 * factors.count(1.0) - 1) / width))
    meeting = replace(usual, high_freq_factor=low)
    candidates = [scaling, meeting, replace(meeting, original_context=max(between, 1))]
    for candidate in candidates:
        expected = llama3_factors(candidate, width, theta)
        if len(expected) == len(factors) and all(
            abs(a / b - 1) < 1e-3 for a, b in zip(factors, expected, strict=True)
        ):
            return write_scaling(candidate) or {}
    raise UserError(
        f"{source} divides rotary frequencies by factors of its own ({FACTORS}), not by Llama "
        "3's; fetch hf."
    )


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
    """LongRoPE's multiplier of queries and keys, where a file says nothing."""
    if factor > 1:
        return math.sqrt(1 + math.log(factor) / math.log(length))
    return 1.0


# -------------------------------------------------------------------------------------- writing


def begin_at_zero(model: config.Model) -> tuple[config.Model, int]:
    """The model whose learned positions begin at row 0 of their table, and the number of rows that
    stood before (RoBERTa's two, which nothing reads)."""
    body = stack(model)
    position: Any = body.position
    start = getattr(position, "start", 0)
    if not start:
        return model, 0
    changed: Any = {model.main_body: replace(body, position=replace(position, start=0))}
    return replace(model, **changed), start


def write_fields(model: config.Model, family: str = "") -> tuple[Fields, Factors, Fields]:
    """The fields that describe a model, the architecture first, the factors of its rotary
    frequencies, and the entry that describes it."""
    recipe, raw = write_published(model, family)
    entries = [
        entry
        for entry in reversed(ENTRIES)
        if entry["recipe"] == recipe.name and _fits(entry, raw, "when", "read")
    ]
    need(
        bool(entries),
        f"A GGUF file holds {', '.join(ARCHITECTURES)} as written here, not this {recipe.name}; "
        "save it as hf.",
    )
    entry = max(entries, key=lambda entry: len(entry.get("when", ())))
    fields = dict(entry.get("filled", {}))
    unwritten = entry.get("unwritten", {})
    schemes = raw.get("rope_parameters") or {}
    raw |= {"rope_theta": rotary_of(model).theta}
    raw |= {word: schemes[kind]["rope_theta"] for kind, word in THETAS.items() if kind in schemes}
    if kinds := raw.get("layers_block_type"):
        raw["num_hidden_layers"] = len(kinds)
    for word, field in entry["all"].items():
        value = _to_field(word, field, raw, entry)
        if value is not None and (field not in unwritten or value != unwritten[field]):
            fields[field] = float(value) if REAL.fullmatch(field) else value
    if kinds:
        hidden = fields.get("expert_feed_forward_length", fields.get("feed_forward_length"))
        fields["feed_forward_length"] = [hidden * (kind == entry["kinds"][2]) for kind in kinds]
    fields["vocab_size"] = raw["vocab_size"]
    width, factors = _width(fields), {}
    fields |= {
        field: _product(value, {**raw, **fields})
        for field, value in entry.get("written", {}).items()
    }
    scaling = rotary_of(model).scaling
    match scaling:
        case Llama3Scaling():
            factors = {FACTORS: llama3_factors(scaling, width, fields["rope.freq_base"])}
        case LinearScaling() | YarnScaling():
            table = raw.get("rope_scaling") or write_scaling(scaling) or {}
            fields["rope.scaling.type"] = table["rope_type"]
            fields |= {
                f"rope.scaling.{field}": table[word] * (0.1 if word == "mscale_all_dim" else 1)
                for word, field in SCALINGS.items()
                if word in table
            }
        case LongRopeScaling():
            factors = {file: getattr(scaling, name) for name, file in LONG_FACTORS.items()}
            usual = long_factor(scaling.factor, scaling.original_context)
            fields[ATTN_FACTOR] = scaling.attention_factor or usual
    mode = getattr(getattr(model, "pool", None), "mode", None)
    for number, name in POOLS.items():
        fields |= {POOLING: number} if name == mode else {}
    kind = entry["architecture"]
    return (
        {"general.architecture": kind} | {f"{kind}.{key}": value for key, value in fields.items()},
        factors,
        entry,
    )


def _to_field(word: str, field: str, raw: Fields, entry: Fields) -> Any:
    """A field's value, of its word's."""
    value: Any = raw.get(word)
    if word in ("layer_types", "layers_block_type") and "kinds" in entry:
        chosen = [kind == entry["kinds"][1] for kind in value]
        heads = raw["num_key_value_heads"]
        return [heads * is_it for is_it in chosen] if "head_count" in field else chosen
    if word == "moe_layers":
        return value[0] + 1 if value else None
    if word == EVERY:  # the block after the first that sees everything; llama.cpp takes no 1
        gap = [*raw["layer_types"][1:], KINDS[0]].index(KINDS[0])
        return gap + 1 if gap else None
    if word == "layer_types":
        slides = [kind == "sliding_attention" for kind in value or ()]
        return slides if any(slides) else None
    if word in SHARES:
        width = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        return int(value * width)
    return value


def check(model: config.Model, fields: Fields, shapes: Shapes, factors: Factors) -> Fields:
    """The entry that describes the model in a file; UserError for what its fields do not say.

    FACTORS say all of a scaling, also where ``read_config`` cannot name it.
    """
    kind, exact = fields["general.architecture"], FACTORS in factors
    back, entry = read_config(fields, shapes, {} if exact else factors, "The file")
    sides = (serial.to_dict(plain(side)) for side in (model, back))
    for path, value, back_value in differences(*sides):
        name = path.rpartition(".")[2]
        near = isinstance(value, float) and isinstance(back_value, float)
        need(
            path in ("context", "pool.normalize")
            or name in ("dropout", "balance_loss")
            or (exact and path == "decoder.position.scaling")
            or (near and math.isclose(value, back_value, rel_tol=1e-6)),  # fp32 in the file
            f"llama.cpp's {kind} has no words for {path} = {str(value)[:60]}; save it as hf.",
        )
    return entry


def is_later(name: str, fields: Fields) -> bool:
    """True for a tensor of a block that predicts later tokens: a file's last so many."""
    block, kind = re.match(r"blk\.(\d{1,9})\.", name), fields["general.architecture"]
    depth, later = fields[f"{kind}.block_count"], fields.get(f"{kind}.nextn_predict_layers", 0)
    return block is not None and depth - later <= int(block[1]) < depth


def table(model: config.Model, entry: Fields) -> Table:
    """The names of the tensors of an architecture, and how they lie: the family's own table by
    llama.cpp's names for what is published."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    heads: dict[str, int] = {}
    delta = first_layer(model, GatedDelta(1, 1))
    latent = first_layer(model, LatentAttention(1))
    for block in blocks_of(model):
        layer: Any = block.attention
        if isinstance(layer, config.Attention):
            heads |= {"attn_q": layer.heads, "attn_k": layer.kv_heads or layer.heads}
        heads["ssm_norm"] = getattr(layer, "groups", heads.get("ssm_norm", 1))
    ratio = delta.value_heads // delta.key_heads
    architectures = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(architectures[entry["architecture"]], 1)
    renamed = []
    for rule in RECIPES[entry["recipe"]].table(model).rules:
        for name, params in _names(rule, entry, names):
            plain_name = re.sub(r"^blk\.[^.]+\.", "", name)
            tensor, _, end = plain_name.partition(".")
            if tensor == "attn_kv_b":
                file_names = (
                    f"{name.replace(tensor, 'attn_k_b')} {name.replace(tensor, 'attn_v_b')}"
                )
                rows = latent.content_dim
                renamed.append(FileRule(file_names, params, heads=latent.heads, first_rows=rows))
                continue
            axes = rule.axes if params == rule.params else ""
            axes, numbers = (*entry.get("turned", {}).get(plain_name, [axes]), "")[:2]
            if tensor in ("attn_q", "attn_k") and entry.get("rotated"):
                axes = {"weight": "(h d 2) c -> (h 2 d) c", "bias": "(h d 2) -> (h 2 d)"}[end]
            if entry.get("offset") and re.search(r"(?<!ssm_)norm\.weight$", name):
                numbers = "1 + x"
            renamed.append(
                FileRule(
                    name,
                    params,
                    axes=axes.replace("r", str(ratio)),
                    heads=heads.get(tensor, max(rule.heads, delta.key_heads)),
                    groups=rule.groups if plain_name in entry.get("dealt", ()) else 1,
                    numbers=numbers,
                    order=tiles(delta) if plain_name in entry.get("tiled", ()) else (),
                )
            )
    copies = (("output.weight", "token_embd.weight"),)
    unread = (FACTORS, *LONG_FACTORS.values(), *entry.get("unread", ()))
    return Table(tuple(renamed), ignore=unread, copies=copies)


def tiles(delta: GatedDelta) -> tuple[int, ...]:
    """The row in a file of each row of queries, keys and values: there, the heads of values lie so
    that key heads take turns."""
    keys = delta.key_heads
    size = delta.value_dim
    ratio = delta.value_heads // delta.key_heads
    first = 2 * keys * delta.key_dim
    places = (turn * keys + key for key in range(keys) for turn in range(ratio))
    return (*range(first), *(first + place * size + row for place in places for row in range(size)))


def _names(rule: NameRule, entry: Fields, names: Any) -> list[tuple[str, tuple[str, ...]]]:
    """llama.cpp's names for the tensors of a rule, and the parameters in each."""
    number = re.search(BLOCK, rule.file_name)
    block = f"blk.{number[0] if number else '{i}'}."
    params: dict[str, tuple[str, ...]] = {}
    for param in rule.params:
        if tensor := entry.get("parameters", {}).get(re.sub(r"^.*blocks\.[^.]+\.", "", param)):
            params[tensor] = (*params.get(tensor, ()), param)
    if params:
        return [(block + tensor, group) for tensor, group in params.items()]
    for end, name in entry.get("names", {}).items():
        if rule.file_name.endswith("." + end):
            return [(block + name, rule.params)]
    published = re.sub(BLOCK, "0", rule.file_name.replace("{i}", "0")).replace(".{e}", "")
    for spelling in (published, published.partition(".")[2]):
        if name := names.get_name(spelling, (".weight", ".bias")):
            return [(name.replace("blk.0.", block), rule.params)]
    return []
