"""What a config says of its module's parameters, in plain Python: what costs need, without torch.

    def shapes(self, dim):        name and shape of each parameter; a position scheme: (width, heads, causal)
        return join(up=linear(dim, self.hidden), down=linear(self.hidden, dim))

The modules in ``nn`` are the law; a test holds each config to them. Where a type has no ``shapes``
of its own (a part of a user's own needs none), its module is built without memory and asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = dict[str, Shape]


class Unmultiplied(tuple[int, ...]):
    """The shape of a parameter of two or more dimensions that costs no FLOPs, such as a table."""


# what nn does for a type without ``shapes``; a list: registered later
_DESCRIBE: list[Callable[..., Shapes]] = []


def shapes_of(cfg: Any, *args: Any) -> Shapes:
    """The parameters of one part, nothing for None; ``args`` are what only its place tells."""
    if cfg is None:
        return {}
    shapes: Shapes = cfg.shapes(*args) if "shapes" in vars(type(cfg)) else _DESCRIBE[0](cfg, *args)
    return shapes


def describes(function: Callable[..., Shapes]) -> Callable[..., Shapes]:
    """Function decorator: who says the shapes where a type does not."""
    _DESCRIBE[:] = [function]
    return function


def no_shapes(cfg: Any, *args: Any) -> Shapes:
    """The ``shapes`` of a type that has no parameters."""
    return {}


def join(**shapes: Shapes | Shape) -> Shapes:
    """Parts under their names; an empty one is left out."""
    joined: Shapes = {}
    for name, shape in shapes.items():
        if isinstance(shape, dict):
            joined |= {f"{name}.{inside}": shape for inside, shape in shape.items()}
        elif shape:
            joined[name] = shape
    return joined


def linear(inputs: int, outputs: int, bias: bool = True) -> Shapes:
    """A dense layer: weight (outputs, inputs) and bias (outputs,)."""
    return join(weight=(outputs, inputs), bias=(outputs,) if bias else ())


def table(rows: int, dim: int) -> Shapes:
    """A table of ``rows`` vectors that tokens are looked up in."""
    return join(weight=Unmultiplied((rows, dim)))


def indexed(name: str, items: Iterable[Shapes]) -> Shapes:
    """Parts of a list under its name: ``blocks.0``, ``blocks.1``, .."""
    return join(**{f"{name}.{index}": shape for index, shape in enumerate(items)})
