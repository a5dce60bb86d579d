"""Attention masks as rules over positions: which keys a query may attend to. No torch here."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import reduce
from operator import and_, or_
from typing import Any, TypeAlias

from ..errors import UserError, above_zero, nearest, need
from .serial import frozen, members

Allows: TypeAlias = Callable[[Any, Any], Any]  # positions of queries, of keys, arrays of any kind -> may look


class Rule:
    """What all rules share: ``a & b`` sees what both see, ``a | b`` what either sees.

    ``allows(causal)`` is what a rule asks of each pair, None where it asks nothing; ``causal``: whether the stack's
    direction is told already. Its numbers are numpy's or torch's, of shapes that broadcast.
    """

    def __and__(self, other: MaskRule) -> Both:
        return Both((*_inside(self, Both), *_inside(other, Both)))

    def __or__(self, other: MaskRule) -> Either:
        return Either((*_inside(self, Either), *_inside(other, Either)))

    def __str__(self) -> str:
        """The rule as ``read_rule`` reads it: ``window(4) | every(8)``."""
        numbers = ", ".join(str(value) for value in vars(self).values())
        return f"{type(self).__name__.lower()}({numbers})" if numbers else type(self).__name__.lower()


def _inside(rule: Any, kind: type[Both] | type[Either]) -> tuple[MaskRule, ...]:
    return rule.rules if isinstance(rule, kind) else (rule,)


@frozen
class Full(Rule):
    """Every token within reach of the stack's direction."""

    def allows(self, causal: bool) -> Allows | None:
        return None


@frozen
class Causal(Rule):
    """Keys no later than the query. A causal stack says so for all its blocks; in an encoder a block may say it."""

    def allows(self, causal: bool) -> Allows | None:
        return None if causal else lambda q, k: k <= q


@frozen
class Prefix(Rule):
    """The first ``length`` tokens see each other both ways, the others what came before (T5's prefix language model).

    In a causal stack it is the one rule that adds keys instead of taking them away; what the data names as its own
    prefix is added to it. A cache must read these tokens in one go.
    """

    length: int

    def __post_init__(self) -> None:
        above_zero(self, "length")

    def allows(self, causal: bool) -> Allows | None:
        return None if causal else lambda q, k: (k <= q) | (k < self.length)  # else added where the direction is told


@frozen
class Window(Rule):
    """Only keys less than ``size`` positions away (Longformer, Mistral); a token sees itself."""

    size: int

    def __post_init__(self) -> None:
        above_zero(self, "size")

    def allows(self, causal: bool) -> Allows:
        return lambda q, k: abs(q - k) < self.size


@frozen
class Every(Rule):
    """Only keys a multiple of ``step`` positions away: the second half of ``Strided``, for a block of its own."""

    step: int

    def __post_init__(self) -> None:
        above_zero(self, "step")

    def allows(self, causal: bool) -> Allows:
        return lambda q, k: (q - k) % self.step == 0


@frozen
class Chunk(Rule):
    """Only keys in the query's own chunk of ``size`` positions (Llama 4): the first half of ``Fixed``."""

    size: int

    def __post_init__(self) -> None:
        above_zero(self, "size")

    def allows(self, causal: bool) -> Allows:
        return lambda q, k: q // self.size == k // self.size


@frozen
class Tail(Rule):
    """Only keys among the ``last`` of their chunk of ``size`` positions, and itself: the second half of ``Fixed``."""

    size: int
    last: int = 1

    def __post_init__(self) -> None:
        above_zero(self, "size", "last")
        need(self.last <= self.size, f"Tail.last is {self.last}; give 1 to size ({self.size}).")

    def allows(self, causal: bool) -> Allows:
        return lambda q, k: (k % self.size >= self.size - self.last) | (k == q)


@frozen
class Strided(Rule):
    """The nearest ``stride`` keys, and each key whole strides away (Sparse Transformers, Child et al. 2019)."""

    stride: int

    def __post_init__(self) -> None:
        above_zero(self, "stride")

    @property
    def parts(self) -> Either:
        """The same rule, of simpler ones."""
        return Window(self.stride) | Every(self.stride)

    def allows(self, causal: bool) -> Allows | None:
        return self.parts.allows(causal)


@frozen
class Fixed(Rule):
    """The query's own ``block``, and the last ``summary`` keys of every block (Child et al. 2019)."""

    block: int
    summary: int = 1

    def __post_init__(self) -> None:
        above_zero(self, "block", "summary")
        need(self.summary <= self.block, f"Fixed.summary is {self.summary}; give 1 to block ({self.block}).")

    @property
    def parts(self) -> Either:
        """The same rule, of simpler ones."""
        return Chunk(self.block) | Tail(self.block, self.summary)

    def allows(self, causal: bool) -> Allows | None:
        return self.parts.allows(causal)


@frozen
class Both(Rule):
    """Keys that every one of ``rules`` lets the query see: ``a & b``."""

    rules: tuple[MaskRule, ...]

    def __post_init__(self) -> None:
        need(len(self.rules) > 0, "Both.rules is empty; give at least one rule.")

    def __str__(self) -> str:
        return " & ".join(f"({rule})" if isinstance(rule, Either) else str(rule) for rule in self.rules)

    def allows(self, causal: bool) -> Allows | None:
        asked = [one for one in [rule.allows(causal) for rule in self.rules] if one is not None]
        return (lambda q, k: reduce(and_, (one(q, k) for one in asked))) if asked else None


@frozen
class Either(Rule):
    """Keys that at least one of ``rules`` lets the query see: ``a | b``."""

    rules: tuple[MaskRule, ...]

    def __post_init__(self) -> None:
        need(len(self.rules) > 0, "Either.rules is empty; give at least one rule.")

    def __str__(self) -> str:
        return " | ".join(map(str, self.rules))

    def allows(self, causal: bool) -> Allows | None:
        asked = [rule.allows(causal) for rule in self.rules]
        return None if None in asked else lambda q, k: reduce(or_, (one(q, k) for one in asked if one is not None))


MaskRule: TypeAlias = (
    Full | Causal | Prefix | Window | Every | Chunk | Tail | Strided | Fixed | Both | Either  # one name each in config
)


def rules() -> dict[str, type]:
    """Every rule that can be written down, by its name in small letters; ``member``s too."""
    return {name.lower(): kind for name, kind in members(MaskRule).items() if kind not in (Both, Either)}


def lookback(mask_rule: MaskRule) -> int | None:
    """How many positions back a query looks at most, itself counted; None where there is no bound."""
    if isinstance(mask_rule, Window):
        return mask_rule.size
    if isinstance(mask_rule, Both | Either):
        bounds = [lookback(rule) for rule in mask_rule.rules]
        known = [bound for bound in bounds if bound is not None]
        if isinstance(mask_rule, Both):
            return min(known, default=None)
        return max(known) if len(known) == len(bounds) else None
    return None


def ahead(mask_rule: MaskRule) -> int:
    """How many of the first tokens are seen by those before them: the longest Prefix within the rule."""
    if isinstance(mask_rule, Both | Either):
        return max(map(ahead, mask_rule.rules))
    return mask_rule.length if isinstance(mask_rule, Prefix) else 0


def read_rule(text: str) -> MaskRule:
    """The rule that an expression such as ``window(4) | every(8)`` means; UserError where it means none."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(f'"{text}" is not a rule; write one such as "window(4)" or "window(4) | every(8)".') from None
    return _rule(tree.body)


def _rule(node: ast.expr) -> MaskRule:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _rule(node.left) & _rule(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _rule(node.left) | _rule(node.right)
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise UserError(f'"{ast.unparse(node)}" is not a rule; combine rules such as window(4) with & and | only.')
    name = call.func.id.lower()
    known = rules()
    if name not in known:
        raise UserError(f'There is no rule "{call.func.id}".{nearest(name, known)}')
    kind, names = known[name], [field.name for field in fields(known[name])]
    form = f"{name}({', '.join(names)})" if names else name
    given = dict(zip(names, call.args, strict=False)) | {word.arg or "": word.value for word in call.keywords}
    numbers = {key: value.value for key, value in given.items() if isinstance(value, ast.Constant)}
    whole = all(type(value) is int for value in numbers.values()) and len(numbers) == len(given)
    fits = given.keys() <= set(names) and len(given) == len(call.args) + len(call.keywords)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    need(
        whole and fits and needed <= given.keys(),
        f'"{ast.unparse(node)}" does not fit; write {form}, integers of 1 or more.',
    )
    rule: MaskRule = kind(**numbers)
    return rule
