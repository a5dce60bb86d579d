"""Token mixers beside plain attention: what can be set of each. No torch here.

Their state has one size at any length:

ShortConv     gates around a convolution over a few tokens (LFM2)
Mamba2        a state that decays by what each token says (Dao & Gu 2024)
GatedDelta    such a state that replaces what it holds of a key (Yang et al. 2024)
TimeMix       a mean of values that forgets at a speed of each channel (RWKV-4)
ChannelMix    a feed-forward that reads the token before as well (RWKV-4)
TimeMix7      a state whose channels decay apart, and whose entries are replaced (RWKV-7)
ChannelMix7   a feed-forward without a gate that reads the token before as well (RWKV-7)

Their modules are in files beside this one; ``config.Mixer`` is the slot.
"""

from __future__ import annotations

from ..core.config.layers import Shapes, Unmultiplied, join, linear
from ..core.config.model import Attention, Mixer
from ..core.config.serial import AtLeastTwo, PositiveFloat, PositiveInt, member
from ..core.errors import need

LAMBDAS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")  # vectors of a DifferentialAttention
TABLES = ("decay", "bonus", "removal", "damping", "gain", "offset")  # of a TimeMix7's channels


def conv(channels: int, kernel: int, bias: bool) -> Shapes:
    """A convolution of each channel over the last ``kernel`` tokens."""
    return join(weight=(channels, 1, kernel), bias=(channels,) if bias else ())


@member(Mixer)
class ShortConv:
    """out(c * convolution(b * x)), where b, c and x are projections of a token (LFM2, Liquid AI
    2025)."""

    kernel: AtLeastTwo = 3  # tokens that a convolution covers
    bias: bool = False  # of the projections and the convolution

    def shapes(self, dim: int, *place: object) -> Shapes:
        return join(
            in_proj=linear(dim, 3 * dim, self.bias),
            conv=conv(dim, self.kernel, self.bias),
            out_proj=linear(dim, dim, self.bias),
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text."""
        return (self.kernel - 1) * dim

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: both gates."""
        return 2 * dim

    def saved_activations(self, dim: int) -> int:
        return 6 * dim


@member(Mixer)
class Mamba2:
    """A state (head_dim, state) a head, which decays and takes a token in by as much as it says."""

    state_heads: PositiveInt  # heads, each with a state
    head_dim: PositiveInt = 64  # values that a head takes of a token
    state: PositiveInt = 128  # numbers that a state keeps of each value
    groups: PositiveInt = 1  # of heads that share what is written and read
    kernel: AtLeastTwo = 4  # tokens that the convolution covers
    bias: bool = False  # of the projections
    conv_bias: bool = True  # of the convolution
    eps: PositiveFloat = 1e-5  # of the gated norm
    least_step: PositiveFloat | None = None  # no step is shorter; none: no bound

    def __post_init__(self) -> None:
        need(
            self.state_heads % self.groups == 0,
            f"Mamba2.groups {self.groups} does not divide state_heads {self.state_heads}; give a "
            "divisor.",
        )

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.state_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Numbers a token that the convolution mixes: values, and what each group writes and
        reads."""
        return self.inner + 2 * self.groups * self.state

    def shapes(self, dim: int, *place: object) -> Shapes:
        heads = (self.state_heads,)
        return join(
            A_log=heads,
            D=heads,
            dt_bias=heads,
            in_proj=linear(dim, self.inner + self.channels + self.state_heads, self.bias),
            conv=conv(self.channels, self.kernel, self.conv_bias),
            norm=join(weight=(self.inner,)),
            out_proj=linear(self.inner, dim, self.bias),
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text."""
        return self.inner * self.state + (self.kernel - 1) * self.channels

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: a state decays, takes in and is read."""
        return 6 * self.inner * self.state

    def saved_activations(self, dim: int) -> int:
        return 4 * self.inner + 3 * self.channels


@member(Mixer)
class GatedDelta:
    """A state (key_dim, value_dim) a value head, which decays and learns by the delta rule (Yang et
    al. 2024, Gated Delta Networks)."""

    key_heads: PositiveInt  # heads of queries and keys
    value_heads: PositiveInt  # heads of values, each with a state; a multiple of key_heads
    key_dim: PositiveInt = 128  # width of a query and a key
    value_dim: PositiveInt = 128  # width of a value
    kernel: AtLeastTwo = 4  # tokens that the convolution covers
    eps: PositiveFloat = 1e-6  # of the gated norm

    def __post_init__(self) -> None:
        need(
            self.value_heads % self.key_heads == 0,
            f"GatedDelta.value_heads {self.value_heads} is not a multiple of key_heads "
            f"{self.key_heads}; change one.",
        )

    @property
    def inner(self) -> int:
        """Width of all values together."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Numbers a token that the convolution mixes: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.inner

    def shapes(self, dim: int, *place: object) -> Shapes:
        heads = (self.value_heads,)
        keys = linear(dim, self.key_heads * self.key_dim, False)
        values, rates = linear(dim, self.inner, False), linear(dim, self.value_heads, False)
        return join(
            A_log=heads,
            dt_bias=heads,
            in_q=keys,
            in_k=keys,
            in_v=values,
            in_gate=values,
            learn=rates,
            fade=rates,
            conv=conv(self.channels, self.kernel, False),
            norm=join(weight=(self.value_dim,)),
            out_proj=linear(self.inner, dim, False),
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text."""
        return self.inner * self.key_dim + (self.kernel - 1) * self.channels

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: a state decays, answers, learns and is read."""
        return 8 * self.inner * self.key_dim

    def saved_activations(self, dim: int) -> int:
        return 4 * self.inner + 3 * self.channels


@member(Mixer)
class TimeMix:
    """A mean of earlier values, weighed by exp(key) and by age, a speed a channel (Peng et al. 2023,
    RWKV, section 3.1)."""

    inner: PositiveInt  # channels of keys and values

    def shapes(self, dim: int, *place: object) -> Shapes:
        layer, channels = linear(dim, self.inner, False), (self.inner,)
        return join(
            decay=channels,
            bonus=channels,
            **{f"mix_{name}": (dim,) for name in "kvr"},
            **dict.fromkeys("kvr", layer),
            out_proj=linear(self.inner, dim, False),
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text: a token, and a mean and its weight a channel."""
        return dim + 2 * self.inner

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: the mix, the mean and the gate."""
        return 9 * dim + 9 * self.inner

    def saved_activations(self, dim: int) -> int:
        return 4 * dim + 6 * self.inner


@member(Mixer)
class ChannelMix:
    """down(relu(up(x)) ** 2) * sigmoid(r(x)), where each layer reads a mix of a token and the one
    before (Peng et al. 2023, section 3.2)."""

    hidden: PositiveInt  # width inside

    def shapes(self, dim: int, *place: object) -> Shapes:
        return join(
            mix_k=(dim,),
            mix_r=(dim,),
            up=linear(dim, self.hidden, False),
            r=linear(dim, dim, False),
            down=linear(self.hidden, dim, False),
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text: a token."""
        return dim

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: both mixes and the gate."""
        return 7 * dim

    def saved_activations(self, dim: int) -> int:
        return 5 * dim + 2 * self.hidden


@member(Mixer)
class TimeMix7:
    """A state (head_dim, head_dim) a head. Each token lets each channel decay, removes a share of
    what stands at its key and writes its value there (Peng et al. 2025, RWKV-7, section 4)."""

    state_heads: PositiveInt  # heads, each with a state
    head_dim: PositiveInt = 64  # width of a head's keys and values
    rank: PositiveInt = 64  # of the matrices that choose decays and the shares that are replaced
    gate_rank: PositiveInt = 128  # of those that gate the output
    # of those that mix in the values of the first such block; none: no mix, as in that block
    value_rank: PositiveInt | None = None
    eps: PositiveFloat = 64e-5  # of the norm of each head

    @property
    def inner(self) -> int:
        """Width of all heads together."""
        return self.state_heads * self.head_dim

    def shapes(self, dim: int, *place: object) -> Shapes:
        layers: dict[str, Shapes] = {}
        ranks = self.rank, self.rank, self.value_rank, self.gate_rank
        for name, rank in zip("wavg", ranks, strict=True):
            if rank is not None:
                layers[f"{name}_down"] = linear(dim, rank, False)
                layers[f"{name}_up"] = linear(rank, self.inner, name in "av")
        return TimeMix(self.inner).shapes(dim) | join(
            **{f"mix_{name}": (dim,) for name in "wag"},
            **dict.fromkeys(TABLES, Unmultiplied((self.state_heads, 1, self.head_dim))),
            **layers,
        )

    def state_size(self, dim: int) -> int:
        """Numbers that a cache keeps of a text: a token, and the state of each head."""
        return dim + self.inner * self.head_dim

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: a state decays, answers, loses, gains and is
        read."""
        return 18 * dim + 9 * self.inner * self.head_dim

    def saved_activations(self, dim: int) -> int:
        return 7 * dim + 14 * self.inner


@member(Mixer)
class ChannelMix7(ChannelMix):
    """down(relu(up(x)) ** 2), where up reads a mix of a token and the one before (Peng et al. 2025,
    RWKV-7, section 4)."""

    def shapes(self, dim: int, *place: object) -> Shapes:
        return join(
            mix_k=(dim,),
            up=linear(dim, self.hidden, False),
            down=linear(self.hidden, dim, False),
        )

    def flops(self, dim: int, context: int) -> int:
        """FLOPs a token beside those of its matrices: the mix."""
        return 3 * dim


@member(Mixer)
class GatedAttention(Attention):
    """Attention whose output each token gates, number by number (Qiu et al. 2025)."""

    def shapes(self, dim: int, *place: object) -> Shapes:
        """Attention's, and the gate's projection."""
        gate = linear(dim, self.heads * self.width(dim), self.bias)
        return Attention.shapes(self, dim) | join(gate=gate)


@member(Mixer)
class TunedAttention(Attention):
    """Attention whose queries grow with position, which keeps long texts sharp (Nakanishi 2025, arXiv
    2501.19399): by 1 + strength * log(1 + floor((position + 1) / length))."""

    length: PositiveInt = 8192  # positions after which queries grow by a step
    strength: PositiveFloat = 0.1  # of the growth

    shapes = Attention.shapes


@member(Mixer)
class DifferentialAttention(Attention):
    """Attention by the difference of two patterns, which cancels what both see (Ye et al. 2024, arXiv
    2410.05258): norm(softmax(q1 k1) v - lambda softmax(q2 k2) v).

    A pair is a head of the first half and its partner in the second. Both attend to the values of
    two key-value heads side by side. ``lambda`` starts at 0.8 - 0.6 exp(-0.3 i) in block i.
    """

    has_pages = False  # no kernel reads values of two heads
    value_heads = 2  # whose values a head attends to

    lambda_std: PositiveFloat = 0.1  # spread of the vectors that lambda comes from, at first
    eps: PositiveFloat = 1e-5  # of the norm of each pair

    def __post_init__(self) -> None:
        super().__post_init__()
        heads = self.kv_heads or self.heads
        need(
            heads % 2 == 0,
            f"DifferentialAttention has {heads} key-value heads and takes them in pairs; give an "
            "even number.",
        )

    def shapes(self, dim: int, *place: object) -> Shapes:
        """Attention's, and four vectors that lambda comes from."""
        return Attention.shapes(self, dim) | dict.fromkeys(LAMBDAS, (self.width(dim),))
