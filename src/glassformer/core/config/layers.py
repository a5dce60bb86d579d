"""Layers and the ends of a model: norms, feed-forward, embedding and head; how weights start, and
their shapes. No torch here.

    def shapes(self, dim):        name and shape of each parameter; a position scheme: (width, heads, causal)
        return join(up=linear(dim, self.hidden), down=linear(self.hidden, dim))

The modules in ``nn`` are the law; a test holds each config to them. Where a type has no ``shapes``
of its own (a part of a user's own needs none), its module is built without memory and asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeAlias

from ..errors import need
from .serial import NonNegativeInt, PositiveFloat, PositiveInt, Range, frozen

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


Deviation: TypeAlias = Annotated[
    float, Range(lambda x: 0 <= x <= 1000, "a deviation from 0 to 1000")
]


@frozen
class Init:
    """Initial weights: normal with ``std`` (None: 1/sqrt(fan_in)); embeddings and an
    untied head have their own.

    ``residual`` is for the matrices that write to the stream: ``plain`` like the others, ``depth``
    divided by sqrt(writes) (GPT-2), ``zero`` (each block starts as the identity).
    """

    std: Deviation | None = 0.02  # standard deviation of matrices; none: 1/sqrt(fan_in)
    embed_std: Deviation = 0.02  # standard deviation of the embeddings
    # what writes to the stream; depth: std / sqrt(writes)
    residual: Literal["plain", "depth", "zero"] = "depth"
    head_std: Deviation | None = None  # standard deviation of an untied head; none: as std


@frozen
class LayerNorm:
    """Centre and scale each vector (Ba et al. 2016)."""

    eps: PositiveFloat = 1e-5  # added to the variance
    bias: bool = True  # shift as well as scale

    def shapes(self, dim: int) -> Shapes:
        return join(weight=(dim,), bias=(dim,) if self.bias else ())


@frozen
class RMSNorm:
    """Scale each vector to unit root mean square (Zhang & Sennrich 2019).

    The gain is ``offset + weight``: 0 for Llama, 1 for Gemma. ``gain=False`` leaves the weight out.
    """

    eps: PositiveFloat = 1e-5  # added to the mean square
    offset: float = 0.0  # what the gain is beside the weight
    gain: bool = True  # scale by a weight as well

    def shapes(self, dim: int) -> Shapes:
        return join(weight=(dim,) if self.gain else ())


Norm: TypeAlias = LayerNorm | RMSNorm


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


# far beyond what anybody trains; more would only hang
EarlierTokens: TypeAlias = Annotated[int, Range(lambda x: 0 <= x <= 1024, "0 to 1,024")]


@frozen
class Embed:
    """Tokens to vectors; ``scale`` multiplies them (2017 and Gemma: sqrt(dim)); BERT adds
    ``segments``.

    ``previous_token_embeddings`` tokens before each add a vector, from tables of their own (Huang
    et al. 2025). Where ``dim`` is not the model's, embeddings with their positions and norm are
    that wide, then projected (Electra).
    """

    vocab: PositiveInt  # tokens that the model knows
    scale: PositiveFloat = 1.0  # the vectors are multiplied by it (2017 and Gemma: sqrt(dim))
    segments: NonNegativeInt = 0  # entries of the table of segments (BERT: 2); 0: none
    # earlier tokens that add a vector of their own tables; 0: none
    previous_token_embeddings: EarlierTokens = 0
    # width of the embeddings, projected to the model's; none: the model's (Electra)
    dim: PositiveInt | None = None

    def shapes(self, width: int) -> Shapes:
        """A table of tokens, one of segments, one for each token before (its last row: none)."""
        segments = table(self.segments, width) if self.segments else {}
        lags = [table(self.vocab + 1, width)] * self.previous_token_embeddings
        return join(token=table(self.vocab, width), segment=segments) | indexed("lag", lags)


@frozen
class Head:
    """Vectors to logits: (transform, activate, norm), scale, project, cap."""

    tied: bool = True  # use the embedding's table as the projection
    bias: bool = False  # add one number a token of the vocabulary
    # activation of a dense layer before the projection (BERT); none: no layer
    transform: Activation | None = None
    norm: Norm | None = None  # after that extra layer; none: no norm
    scale: PositiveFloat = 1.0  # the hidden state is multiplied by it (T5: dim ** -0.5)
    # c bounds logits: c * tanh(logits / c) (Gemma 2); none: no bound
    softcap: PositiveFloat | None = None
    transform_bias: bool = True  # the extra layer adds a bias (ModernBERT: no)
    # width that the extra layer ends in (ELECTRA, ALBERT: the embedding's); none: the model's
    width: PositiveInt | None = None

    def __post_init__(self) -> None:
        fits = self.width is None or self.transform is not None
        need(fits, f"Head.width is {self.width} and the head has no transform; give it one.")

    def shapes(self, dim: int, vocab: int) -> Shapes:
        """The transform, its norm, and the table where it is not the embedding's."""
        inner = self.width or dim
        proj = join(weight=() if self.tied else (vocab, inner), bias=(vocab,) if self.bias else ())
        return join(
            transform=linear(dim, inner, self.transform_bias) if self.transform else {},
            norm=shapes_of(self.norm, inner),
            proj=proj,
        )
