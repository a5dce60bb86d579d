"""Feed-forward layers: one network, or a mixture of experts. No torch here."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..errors import need
from .serial import PositiveFloat, PositiveInt, frozen
from .shapes import Shapes, Unmultiplied, join, linear, shapes_of

Activation: TypeAlias = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "tanh"]


@frozen
class MLP:
    """Up, activate, down (Vaswani et al. 2017, section 3.3)."""

    hidden: PositiveInt  # width inside
    act: Activation = "gelu_tanh"  # the activation
    bias: bool = False  # of both layers

    def shapes(self, dim: int) -> Shapes:
        return join(
            up=linear(dim, self.hidden, self.bias), down=linear(self.hidden, dim, self.bias)
        )

    def saved_activations(self, dim: int) -> int:
        """Numbers a token that training keeps: those before and after the nonlinearity."""
        return 2 * self.hidden


@frozen
class GatedMLP:
    """Up times an activated gate, then down (Shazeer 2020: SwiGLU with ``act="silu"``)."""

    hidden: PositiveInt  # width inside
    act: Activation = "silu"  # the gate's activation
    bias: bool = False  # of all three layers

    def shapes(self, dim: int) -> Shapes:
        up = linear(dim, self.hidden, self.bias)
        return join(gate=up, up=up, down=linear(self.hidden, dim, self.bias))

    def saved_activations(self, dim: int) -> int:
        """Numbers a token that training keeps: two of the gate, ``up`` and the product."""
        return 4 * self.hidden


@frozen
class MoE:
    """Mixture of experts: a token goes to ``top_k`` of ``experts`` (Shazeer et al. 2017)."""

    experts: PositiveInt  # number of experts
    top_k: PositiveInt  # experts that a token goes to
    expert: MLP | GatedMLP  # what each expert is
    # make the chosen weights sum to 1; at top_k 1 the router then learns by its losses alone
    normalize: bool = True
    balance_loss: float = 0.0  # weight of the load-balancing loss (Fedus et al. 2021)
    z_loss: float = 0.0  # weight of the router's z-loss (Zoph et al. 2022)
    # tokens an expert takes in training, in even shares
    capacity_factor: PositiveFloat | None = None
    # add learned noise to the router's logits in training (Shazeer et al. 2017)
    noise: bool = False
    # an expert that every token goes to as well (Dai et al. 2024); none: no such
    shared: MLP | GatedMLP | None = None

    def __post_init__(self) -> None:
        need(
            self.top_k <= self.experts,
            f"MoE.top_k is {self.top_k}; give 1 to experts ({self.experts}).",
        )

    @property
    def networks(self) -> int:
        """Number of networks in the layer: one an expert."""
        return self.experts

    def shapes(self, dim: int) -> Shapes:
        """The experts' layers stacked: (E, H, C) for an expert's (H, C), and biases (E, H)."""
        stacked: Shapes = {}
        biases: Shapes = {}
        for name, shape in self.expert.shapes(dim).items():
            layer, _, kind = name.partition(".")
            expert_shape = (self.experts, *shape)
            if kind == "weight":
                stacked[layer] = expert_shape
            else:
                biases[f"{layer}_bias"] = Unmultiplied(expert_shape)
        router = linear(dim, self.experts, False)
        return (
            stacked
            | biases
            | join(
                router=router,
                noise=router if self.noise else {},
                shared=shapes_of(self.shared, dim),
            )
        )

    def idle(self, name: str, size: int) -> int:
        """Numbers of the parameter ``name`` (``size`` in all) in experts a token does not visit."""
        met = name.startswith(("router.", "noise.", "shared."))
        return 0 if met else size * (self.experts - self.top_k) // self.experts

    def saved_activations(self, dim: int) -> int:
        """Numbers a token that training keeps: its experts', sorted rows, indices, the router's."""
        shared = 0 if self.shared is None else self.shared.saved_activations(dim)
        return (
            self.top_k * (self.expert.saved_activations(dim) + 3 * dim + 9)
            + shared
            + 4 * self.experts
        )


FeedForward: TypeAlias = MLP | GatedMLP | MoE
