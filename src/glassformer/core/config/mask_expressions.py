"""Mask rules as a run file writes them: ``window(4) | every(8)``. No torch here."""

from __future__ import annotations

import ast
from dataclasses import fields
from inspect import signature
from typing import get_args

from ..errors import UserError, nearest
from .mask import Both, Either, MaskRule
from .serial import EXPRESSIONS, members


def _parse_expression(text: str) -> MaskRule | None:
    """Parses a rule of a run file such as ``window(4) | every(8)``; None for other texts."""
    expression = any(sign in text for sign in "(|&") and not text.startswith("{")
    return parse_rule(text) if expression or text.lower() in rules() else None


EXPRESSIONS[frozenset(get_args(MaskRule))] = _parse_expression


def rules() -> dict[str, type]:
    return {
        name.lower(): kind for name, kind in members(MaskRule).items() if kind not in (Both, Either)
    }


def parse_rule(text: str) -> MaskRule:
    """The rule that an expression such as ``window(4) | every(8)`` means; UserError for others."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UserError(
            f'"{text}" is not a rule; write one such as "window(4)" or "window(4) | every(8)".'
        ) from None
    return _rule(tree.body)


def _rule(node: ast.expr) -> MaskRule:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return _rule(node.left) & _rule(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _rule(node.left) | _rule(node.right)
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name):
        raise UserError(
            f'"{ast.unparse(node)}" is not a rule; combine rules such as window(4) '
            "with & and | only."
        )
    name, known_rules = call.func.id.lower(), rules()
    if name not in known_rules:
        raise UserError(f'There is no rule "{call.func.id}".{nearest(name, known_rules)}')
    try:
        numbers = signature(known_rules[name]).bind(
            *map(_integer, call.args),
            **{word.arg or "": _integer(word.value) for word in call.keywords},
        )
    except (TypeError, ValueError):
        names = ", ".join(field.name for field in fields(known_rules[name]))
        form = f"{name}({names})" if names else name
        raise UserError(
            f'"{ast.unparse(node)}" does not fit; write {form}, integers of 1 or more.'
        ) from None
    rule: MaskRule = known_rules[name](*numbers.args, **numbers.kwargs)
    return rule


def _integer(node: ast.expr) -> int:
    """The integer that is written there; TypeError or ValueError for anything else."""
    value = ast.literal_eval(node)
    if type(value) is not int:
        raise TypeError
    return value
