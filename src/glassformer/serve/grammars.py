"""Answers held to a JSON schema, a regular expression or a grammar, by llguidance: enforced, or
refused with a 400.

What is compiled is bounded in size and time, and nothing of it is kept between requests but one
table a tokenizer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import need
from ..core.tokenizer import Tokenizer
from .asgi.limits import MOST_SCHEMA
from .asgi.replies import HttpError, refuse
from .engine.sequence import Guide, QueueFull

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# A step computes masks while everybody waits, so a request may take so many seconds of the processor for its own,
# and each of its tokens adds to them.
MOST_SECONDS = 2.0
TOKEN_SECONDS = 0.01
# What the masks of all requests of a client take beyond that, it pays back by this share of the time that goes by;
# while it owes more than two requests may take, its next masks are refused.
CLIENT_SHARE = 0.25
_paid_at: dict[str, float] = {}  # by client, of those that owe something
COMPILE_SECONDS = 20.0  # a grammar's compiling has so long; nothing can end it
_compiling = set[str]()  # clients with one that was given up and goes on
# bytes of address space: llguidance follows rules by recursion, and a full stack ends the process
STACK = 1 << 29
_stack_lock = threading.Lock()
# or a small model writes nothing else
SPACES: Any = {"whitespace_flexible": True, "whitespace_pattern": " ?"}
ENFORCED_KEYWORDS = """
type const enum anyOf oneOf allOf $ref $defs definitions properties patternProperties additionalProperties required
minProperties maxProperties items prefixItems minItems maxItems minLength maxLength pattern format minimum maximum
exclusiveMinimum exclusiveMaximum multipleOf
"""
ANNOTATIONS = """
$schema $id $comment title description default examples deprecated readOnly writeOnly discriminator
"""
KEYWORDS = frozenset((ENFORCED_KEYWORDS + ANNOTATIONS).split())
MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")
SCHEMA_KEYWORDS = ("items", "additionalProperties")


def guide_factory(
    tokenizer: Tokenizer, vocab: int, kind: str, source: Any, client: str = ""
) -> Callable[[], Guide]:
    """Compiles a client's grammar to a factory of Guides, one per continuation. Raises HttpError 400
    for unsupported grammars."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        # a pattern of 7,000 optional letters, whose mask takes 1.7 s; the time grows by the square
        initial_lexer_fuel=50_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        max_items_in_row=50_000,  # 1,500 optional properties are 6,000; an alternative is one
        step_max_items=50_000,
    )
    table, text = _table(tokenizer), _grammar(kind, source)
    first = _compiled(lambda: LLMatcher(table, text, log_level=0, limits=limits), client)
    name = {"json": "JSON schema", "regex": "regular expression"}.get(kind, "grammar")
    problem = first.get_error() or "; ".join(first.get_grammar_warnings())
    refuse(
        bool(problem),
        f"The {name} cannot be enforced: {_one_line(problem)}",
        code="bad_grammar",
    )
    return guides(first, vocab, client)


def _compiled(compile: Callable[[], Any], client: str) -> Any:
    """Runs ``compile`` in a thread with a stack of its own. Raises HttpError 400 where it takes too
    long, and QueueFull as long as one of the ``client`` that did goes on."""
    if client in _compiling:
        raise QueueFull("A grammar of this client is still being compiled; send this later.")
    matcher = Future[Any]()

    def work() -> None:
        try:
            matcher.set_result(compile())
        except BaseException as error:
            matcher.set_exception(error)
        _compiling.discard(client)

    with _stack_lock:
        usual = threading.stack_size(STACK)
        try:
            threading.Thread(target=work, name="glassformer-grammar", daemon=True).start()
        finally:
            threading.stack_size(usual)
    try:
        return matcher.result(COMPILE_SECONDS)
    except TimeoutError:
        _compiling.add(client)
        if matcher.done():  # meanwhile
            _compiling.discard(client)
        message = "The grammar takes too long to compile; give a smaller one, with fewer patterns."
        raise HttpError(400, message, code="bad_grammar") from None


def guides(first: Any, vocab: int, client: str = "") -> Callable[[], Guide]:
    """A factory of Guides that begin where the matcher ``first`` stands. They raise UserError where it
    allows nothing, and where together they take too long; QueueFull where all of the ``client`` do."""
    seconds = MOST_SECONDS

    def guide() -> Guide:
        matcher = first.deep_copy()
        consumed = 0

        def allowed(tokens: Sequence[int]) -> Tensor:
            """Boolean mask (V,) of the tokens allowed after those so far."""
            nonlocal seconds, consumed
            _check_debt(client)
            start = time.thread_time()
            fits = all(map(matcher.consume_token, tokens[consumed:]))
            consumed = len(tokens)
            mask = matcher.compute_bitmask()
            excess = time.thread_time() - start - TOKEN_SECONDS
            _owe(client, excess)
            seconds = min(seconds - excess, MOST_SECONDS)
            need(
                seconds > 0,
                "The grammar takes too long because it is ambiguous; rewrite it so that each "
                "text has one parse.",
            )
            need(
                fits and not matcher.is_error(),
                "The grammar allows nothing here, or became too large: "
                f"{_one_line(matcher.get_error())}",
            )
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab, bitorder="little")
            return torch.from_numpy(bits).bool()

        return allowed

    return guide


def _check_debt(client: str) -> None:
    """Raises QueueFull for a client whose masks have taken too long until now."""
    owed = _paid_at.get(client, 0.0) - time.monotonic()
    if owed * CLIENT_SHARE > 2 * MOST_SECONDS:
        raise QueueFull("The grammars of this client take too long together; send this later.")


def _owe(client: str, seconds: float) -> None:
    now = time.monotonic()
    if seconds > 0:
        _paid_at[client] = max(now, _paid_at.get(client, now)) + seconds / CLIENT_SHARE
    for name in [name for name, end in [*_paid_at.items()] if end < now]:
        _paid_at.pop(name, None)


def _one_line(message: str) -> str:
    return " ".join(message.split("<state>")[0].split())[:300].rstrip(".") + "."


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
    check_schema(source)
    try:
        return LLMatcher.grammar_from_json_schema(text, overrides=SPACES)
    except ValueError as error:
        raise HttpError(
            400, f"The JSON schema cannot be held to: {_one_line(str(error))}", code="bad_grammar"
        ) from None


def check_schema(schema: Any, depth: int = 0) -> None:
    """Raises HttpError for schema keywords that llguidance would ignore: a schema is enforced in
    full or rejected."""
    refuse(
        depth > 64,
        "The JSON schema is nested more than 64 deep; write it flatter.",
        code="bad_grammar",
    )
    for name, value in schema.items() if isinstance(schema, Mapping) else ():
        message = (
            f'The JSON schema says "{name[:80]}", which is not enforced here; leave it out, '
            "or say it otherwise."
        )
        refuse(name not in KEYWORDS, message, code="bad_grammar")
        match value:
            case dict() if name in MAP_KEYWORDS:
                subschemas = list(value.values())
            case list() if name in LIST_KEYWORDS:
                subschemas = value
            case _:
                subschemas = [value] * (name in SCHEMA_KEYWORDS)
        for subschema in subschemas:
            check_schema(subschema, depth + 1)


class _Vocabulary:
    """Adapter of a tokenizer for llguidance: the bytes of every id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos
        self.bos_token_id = tokenizer.bos
        self.special_token_ids = [id for id in range(tokenizer.size) if tokenizer.hides(id)]
        self.tokens = [
            b"" if not tokenizer.token(id) or tokenizer.hides(id) else tokenizer.bytes_of(id)
            for id in range(tokenizer.size)
        ]
        self.tokenizer = tokenizer
        self.ids = {token: id for id, token in enumerate(self.tokens) if token}
        self.longest = max(map(len, self.ids))

    def __call__(self, text: Any) -> list[int]:
        """Ids whose bytes are exactly the text's, as far as the vocabulary has them."""
        data = text.encode() if isinstance(text, str) else text
        # nothing is put in front, as SentencePiece would
        ids = self.tokenizer.encode_continuation(data.decode("utf-8", "replace"))[0]
        if b"".join(self.tokens[id] for id in ids) == data:
            return ids
        ids = []  # of a tokenizer that drops spaces or normalizes: the longest token each time
        sizes = range(self.longest, 0, -1)
        while size := next((size for size in sizes if data[:size] in self.ids), 0):
            ids.append(self.ids[data[:size]])
            data = data[size:]
        return ids


@lru_cache(maxsize=8)
def _table(tokenizer: Tokenizer) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    need(
        tokenizer.eos is not None,
        "This tokenizer has no end-of-text token, so a grammar could not end; use another.",
    )
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer)), n_vocab=tokenizer.size)
