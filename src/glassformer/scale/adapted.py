"""Layers with a low-rank change, cut by the tensor axis: the change is cut along with its matrix.

             W (O, I)    down (R, I)    up (O, R)
    columns  outputs     whole          outputs
    rows     inputs      inputs         whole

R rank, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn import functional as F

from ..core.nn.layers import Linear
from ..core.nn.lora import LoRALinear

Collective: TypeAlias = Callable[[Tensor], Tensor]


class Columns(Linear):
    """A dense layer of which each process computes some outputs."""

    enter: Collective

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.enter(x), x)

    def after(self, entered: Tensor, x: Tensor) -> Tensor:
        """The outputs of x, and of what ``enter`` made of it."""
        return F.linear(entered, self.weight, self.bias)

    def joint(self, x: Tensor, layers: Any) -> Any:
        entered = self.enter(x)  # once for all
        return [layer.after(entered, x) for layer in layers]


class Rows(Linear):
    """A dense layer of which each process has some inputs: the sum of what they give, the bias
    once."""

    leave: Collective

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class AdaptedColumns(LoRALinear):
    """``Columns`` with a change: what ``down`` finds is whole, and the gradient to it the sum of
    all processes'."""

    enter: Collective
    joint = Columns.joint

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.enter(x), x)

    def after(self, entered: Tensor, x: Tensor) -> Tensor:
        """The outputs of x, and of what ``enter`` made of it."""
        change = F.linear(self.enter(F.linear(self.drop(x), self.down)), self.up)
        return F.linear(entered, self.weight, self.bias) + self.scale * change


class AdaptedRows(LoRALinear):
    """``Rows`` with a change, of which ``down`` sees the inputs here, from ``low`` on of so
    ``many``."""

    leave: Collective
    low: int
    many: int

    def forward(self, x: Tensor) -> Tensor:
        y = self.leave(F.linear(x, self.weight))
        y = y if self.bias is None else y + self.bias
        return y + self.scale * F.linear(self.leave(F.linear(self.dropped(x), self.down)), self.up)

    def dropped(self, x: Tensor) -> Tensor:
        """Applies the dropout of the full x (.., I): its mask is drawn for all inputs."""
        rate = self.drop.p
        if not self.training or rate == 0:
            return x
        mask = x.new_empty(*x.shape[:-1], self.many).bernoulli_(1 - rate)
        return x * mask.narrow(-1, self.low, x.shape[-1]).div_(1 - rate)


LAYERS: dict[tuple[type, bool], type] = {
    (Linear, True): Columns,
    (Linear, False): Rows,
    (LoRALinear, True): AdaptedColumns,
    (LoRALinear, False): AdaptedRows,
}
"""The class of a layer whose outputs (True) or inputs are cut."""
