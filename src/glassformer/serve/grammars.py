"""Answers held to a JSON schema, a regular expression or a grammar, by llguidance: enforced, or
refused with a 400.

What is compiled is bounded in size and time, and nothing of it is kept between requests but one
table a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..engine.request import Guide
from ..errors import UserError, need
from ..tokenizer import Tokenizer
from .errors import ApiError, refuse
from .limits import MOST_SCHEMA

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# or a small model writes nothing else
SPACES: Any = {"whitespace_flexible": True, "whitespace_pattern": " ?"}
ENFORCED = """
type const enum anyOf allOf $ref $defs definitions properties patternProperties additionalProperties required
minProperties maxProperties items prefixItems minItems maxItems minLength maxLength pattern format minimum maximum
exclusiveMinimum exclusiveMaximum multipleOf
"""
ANNOTATIONS = """
$schema $id $comment title description default examples deprecated readOnly writeOnly
"""
NAMED = ("properties", "patternProperties", "$defs", "definitions")
LISTED = ("anyOf", "allOf", "prefixItems")
ONE = ("items", "additionalProperties")


def guide(tokenizer: Tokenizer, vocab: int, kind: str, source: Any) -> Callable[[], Guide]:
    """What makes a Guide for each continuation. Raises ApiError 400 for what cannot be held to."""
    from llguidance import LLMatcher, LLParserLimits

    grammar = _grammar(kind, source)
    table = _table(tokenizer)
    limits = LLParserLimits(
        initial_lexer_fuel=500_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        max_items_in_row=50_000,  # 1,500 optional properties are 6,000; an alternative is one
        step_max_items=200_000,
    )
    first = LLMatcher(table, grammar, log_level=0, limits=limits)
    refuse(
        first.is_error(),
        f"The {_named(kind)} cannot be held to: {_plain(first.get_error())}",
        code="bad_grammar",
    )
    refuse(
        bool(first.get_grammar_warnings()),
        f"The {_named(kind)} cannot be held to: {first.get_grammar_warnings()}",
    )
    return lambda: Constraint(first.deep_copy(), vocab)


def _named(kind: str) -> str:
    return {"json": "JSON schema", "regex": "regular expression"}.get(kind, "grammar")


def _plain(said: str) -> str:
    return " ".join(said.split())[:300].rstrip(".") + "."


def _grammar(kind: str, source: Any) -> str:
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "lark":
        return LLMatcher.grammar_from_lark(source)
    text = json.dumps(source)
    refuse(
        len(text) > MOST_SCHEMA,
        f"The JSON schema has {len(text)} characters; {MOST_SCHEMA} are read at most.",
    )
    if isinstance(source, Mapping):
        _known(source, 0)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=SPACES)
    except ValueError as error:
        raise ApiError(
            400, f"The JSON schema cannot be held to: {_plain(str(error))}", code="bad_grammar"
        ) from None


def _known(schema: Any, depth: int) -> None:
    """Raise for a keyword that would be passed over: a schema is enforced as a whole or not at
    all."""
    refuse(
        depth > 64,
        "The JSON schema is nested more than 64 deep; write it flatter.",
        code="bad_grammar",
    )
    if isinstance(schema, bool) or not isinstance(schema, Mapping):
        return
    odd = next(
        (
            name
            for name in schema
            if name not in ENFORCED.split() and name not in ANNOTATIONS.split()
        ),
        None,
    )
    said = (
        f'The JSON schema says "{str(odd)[:80]}", which is not enforced here; leave it out, '
        "or say it otherwise."
    )
    refuse(odd is not None, said, code="bad_grammar")
    inside = [*_values(schema, NAMED, dict), *_values(schema, LISTED, list)]
    inside += [schema[name] for name in ONE if name in schema]
    for one in inside:
        _known(one, depth + 1)


def _values(schema: Mapping[str, Any], names: Sequence[str], kind: type) -> list[Any]:
    found = [schema[name] for name in names if isinstance(schema.get(name), kind)]
    return [
        value for group in found for value in (group.values() if isinstance(group, dict) else group)
    ]


class Constraint:
    """One continuation's way through a grammar: asked before each token with all those before
    it."""

    def __init__(self, matcher: Any, vocab: int) -> None:
        self.matcher, self.vocab, self.read = matcher, vocab, 0

    def __call__(self, tokens: Sequence[int]) -> Tensor:
        """Booleans (V,): what may follow."""
        for token in tokens[self.read :]:
            need(
                self.matcher.consume_token(token),
                f"The grammar does not take token {token}, and let it through.",
            )
        self.read = len(tokens)
        packed = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.uint8)
        if self.matcher.is_error():
            raise UserError(
                f"The grammar became too large on the way: {_plain(self.matcher.get_error())}"
            )
        bits = (packed[:, None] >> torch.arange(8)) & 1
        return bits.flatten()[: self.vocab].bool()


class _Vocabulary:
    """A tokenizer as llguidance reads it: the bytes of every id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id, self.bos_token_id = tokenizer.eos, tokenizer.bos
        self.special_token_ids = [id for id in range(tokenizer.size) if tokenizer.hides(id)]
        self.tokens = [
            b"" if tokenizer.token(id) == "" or tokenizer.hides(id) else tokenizer.bytes_of(id)
            for id in range(tokenizer.size)
        ]
        self.tokenizer = tokenizer

    def __call__(self, text: Any) -> list[int]:
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        # nothing is put in front, as SentencePiece would
        return self.tokenizer.encode_continuation(plain)[0]


@lru_cache(maxsize=8)
def _table(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    need(
        tokenizer.eos is not None,
        "This tokenizer has no end-of-text token, so a grammar could not end; use another.",
    )
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), n_vocab=tokenizer.size)
