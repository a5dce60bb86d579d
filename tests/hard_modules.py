"""Modules of a few lines that are hard to record: writes in place, views, odd results, layers of PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seeding import generator_from

WIDTH = 8
Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
CALLS = {}


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=generator_from(seed), dtype=dtype)


def call(name):
    torch.manual_seed(0)
    module, args, kwargs = CALLS[name]()
    return module.eval(), args, kwargs


def module(function):
    """Registers a function of a layer and a tensor as a module's forward."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)
            self.register_buffer("table", noise(4, WIDTH, seed=5))

        def forward(self, x):
            return function(self, x)

    CALLS[function.__name__] = lambda: (Module(), (noise(2, 4, WIDTH, seed=1),), {})
    return function


# ------------------------------------------------------------------------------------------ writes


@module
def indexed_write(self, x):
    y = self.layer(x)
    y[:, 0] = x[:, 1] * 2
    y[0, 1:3, ::2] = 0.5
    return self.norm(y)


@module
def added_in_place(self, x):
    y = self.layer(x)
    before = y * 3
    y += x
    y[:, 1] += 1
    y *= 2
    y.add_(before).mul_(0.5).sub_(1.0)
    return y - before


@module
def masked_in_place(self, x):
    scores = self.layer(x) @ x.mT
    scores.masked_fill_(torch.ones(4, 4).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ x


@module
def copied_through_a_view(self, x):
    y = torch.zeros(2, 4, 2 * WIDTH)
    left, right = y.chunk(2, -1)
    left.copy_(self.layer(x))
    right.copy_(x).mul_(2)
    y.view(2, 4, 2, WIDTH)[:, :, 1].neg_()
    return y.sum(1)


@module
def written_out(self, x):
    result = torch.empty(2, 4, WIDTH)
    torch.mul(x, 2.0, out=result)
    torch.add(result, self.layer(x), out=result)
    return result.tanh()


@module
def views_of_views(self, x):
    y = self.layer(x).view(2, 4, 2, 4).transpose(1, 2)
    z = y[:, :, 1:].permute(0, 3, 2, 1)[..., 0].unsqueeze(-1).expand(-1, -1, -1, 3)
    z = z.flatten(1)[:, ::2]
    return (z * 2).unflatten(1, (2, -1)).flip(1).roll(1, -1)


@module
def write_seen_through_views(self, x):
    y = self.layer(x)
    first = y[:, 0]
    last = y.select(1, 3)
    turned = y.transpose(1, 2)
    y[:, 0].mul_(3)
    turned[:, 2:4] = 1.5
    return first.sum(-1) + last.sum(-1) + turned.square().sum((1, 2))


@module
def sliced_scan(self, x):
    states = torch.zeros_like(x)
    state = x[:, 0]
    for t in range(x.shape[1]):
        state = 0.9 * state + self.layer(x[:, t])
        states[:, t] = state
    return states


@module
def relu_in_place(self, x):
    y = self.layer(x)
    F.relu(y, inplace=True)
    F.silu(y[0], inplace=True)
    return y.clamp_(max=1.0).exp_()


@module
def sums_of_rows(self, x):
    rows = torch.zeros(3, WIDTH)
    rows.index_add_(0, torch.tensor([0, 2, 0, 1]), self.layer(x[0]))
    rows.scatter_add_(0, torch.tensor([[0, 1, 2] + [0] * 5]), x[1, :1])
    rows.index_copy_(0, torch.tensor([1]), x[1, :1] * 3)
    return rows.scatter(1, torch.tensor([[0], [3], [5]]), 7.0)


@module
def put_in_place(self, x):
    y = self.layer(x[0])
    y.index_put_((torch.tensor([0, 0, 2]), torch.tensor([1, 1, 3])), x[1, 0, :3], accumulate=True)
    y[y > 0.5] = 0.25
    y[torch.tensor([True, False, False, True])] += x[1, :2]
    y.fill_diagonal_(2.0)
    return y


# ------------------------------------------------------------------------------------- functions


@module
def tops(self, x):
    y = self.layer(x)
    values, places = y.topk(3, -1)
    order = y.sort(-1, descending=True)
    chosen = F.one_hot(y.argmax(-1), WIDTH).to(y) * y
    total = y.cumsum(1).gather(-1, places)
    largest = y.max(1)
    return {
        "values": values,
        "sorted": order.values,
        "order": y.gather(-1, order.indices) * 2,
        "chosen": chosen,
        "total": total,
        "largest": largest.values,
        "product": y.cumprod(-1),
        "amin": y.amin((0, 2)),
        "median": y.median(-1).values,
        "kth": y.kthvalue(2, -1).values,
    }


@module
def rotary_by_complex(self, x):
    angles = torch.outer(torch.arange(4.0), 1 / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(self.layer(x).view(2, 4, -1, 2))
    return torch.view_as_real(pairs * turns).flatten(2)


@module
def einsums(self, x):
    y = torch.einsum("bth,oh->bto", x, self.layer.weight)
    scores = torch.einsum("bqh,bkh->bqk", y, x)
    return torch.einsum("bqk,bkh,h->bqh", scores, x, self.table[0])


@module
def products_with_vectors(self, x):
    v = self.table[1]
    return (
        x @ v,
        self.layer.weight @ v,
        v @ self.layer.weight,
        v.dot(self.table[0]),
        torch.mv(self.table, v),
        torch.mm(x[0], self.layer.weight),
        torch.outer(v, v),
        torch.addmm(self.table, x[0], self.layer.weight, beta=0.5, alpha=2.0),
        torch.baddbmm(x, x @ x.mT, x, beta=0.0),
        torch.tensordot(x, self.layer.weight, dims=([2], [1])),
        F.bilinear(x[0], x[1], self.table[:2, :, None] * self.table[0]),
    )


@module
def chosen_with_broadcast(self, x):
    y = self.layer(x)
    z = torch.where(y > 0, y, self.table[0])
    z = torch.where(torch.arange(4)[:, None] > 1, z, torch.tensor(0.5))
    return torch.where(z.isnan(), 0.0, z).masked_fill(z < -1, -1.0)


@module
def scalars(self, x):
    y = self.layer(x)
    scale = y.abs().max()
    count = torch.tensor(3.0)
    return y / scale + scale.log() * count - y.mean() ** 2 + y.std() - y[0, 0, 0]


@module
def empty_tensors(self, x):
    nothing = x[:, 4:]
    y = torch.cat([self.layer(nothing), x, nothing], 1)
    return y + nothing.sum() + torch.cat([torch.empty(0), y[0, 0]])


@module
def reductions(self, x):
    y = self.layer(x)
    return (
        y.mean((0, 1)),
        y.sum(),
        y.var(-1, correction=0),
        torch.linalg.vector_norm(y, dim=-1),
        y.norm(dim=1),
        y.logsumexp(-1),
        F.normalize(y, dim=-1),
        y.prod(-1),
        torch.std_mean(y, -1)[0],
        F.cosine_similarity(y, x, -1),
        F.log_softmax(y, 1),
        y.softmax(0),
        F.softmax(y.flatten(), 0),
        F.cross_entropy(y.flatten(0, 1), torch.arange(8)),
        F.glu(y, 1),
        F.gelu(y, approximate="tanh"),
        F.rms_norm(y, (WIDTH,)),
        F.group_norm(y, 2),
    )


@module
def moves(self, x):
    y = self.layer(x)
    return (
        F.pad(y, (1, 2)) * 2,
        F.pad(y, (0, 0, 1, 0), value=3.0) * 2,
        y.repeat(1, 2, 1) + 1,
        y.repeat_interleave(2, 1) + 1,
        torch.stack([y, x], 1) * 2,
        y.unfold(1, 2, 1) * 2,
        y.tril() + y.triu(1),
        y.diagonal(dim1=1, dim2=2) * 2,
        y.movedim(0, -1) * 2,
        y[:, torch.tensor([3, 1])] * 2,
        y[..., None, :].squeeze(2) * 2,
        y.index_select(1, torch.tensor([0, 0, 3])) * 2,
        y.take_along_dim(y.argsort(-1), -1) * 2,
        y[y > 0] * 2,
        torch.meshgrid(y[0, 0], y[0, 1], indexing="ij")[0] * 2,
        y.split([1, 3], 1)[1] * 2,
        y.unbind(1)[2] * 2,
        y.half().float() * 2,
        y.long() + y.round().int(),
        F.interpolate(y, scale_factor=2.0) * 2,
        F.fold(F.unfold(y[None], (2, 2)), (4, WIDTH), (2, 2)),
    )


@module
def linear_algebra(self, x):
    square = x[0, :, :4] @ x[0, :, :4].mT + torch.eye(4)
    return (
        torch.linalg.inv(square),
        torch.linalg.solve(square, x[1]),
        torch.cdist(x, x + 1),
        torch.fft.rfft(x).abs(),
        torch.kron(square, square)[:3],
        torch.matrix_exp(square * 0.1),
    )


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign() * x.abs().sqrt()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@module
def function_of_ones_own(self, x):
    return self.norm(Straight.apply(self.layer(x)))


def time_steps(x):
    for t in range(x.shape[1]):
        yield x[:, t] * (t + 1)


@module
def generator_of_parts(self, x):
    return sum((self.layer(step) for step in time_steps(x)), torch.zeros(2, WIDTH))


# --------------------------------------------------------------------------------------- results


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Record:
    states: Tensor
    parts: list[Tensor]


@module
def named_tuple(self, x):
    return Pair(self.layer(x), x + 1)


@module
def record(self, x):
    return Record(self.layer(x), [x + 1, x.sum(-1)])


@module
def nested(self, x):
    y = self.layer(x)
    return {"a": [y * 2, (y + 1, {"b": y.sum()})], "plain": 3, "none": None}


@module
def input_returned(self, x):
    return x, self.layer.weight


# --------------------------------------------------------------------------------------- modules


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH, padding_idx=0)
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, x):
        return self.step(self.step(self.step(x)))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Bilinear(WIDTH, WIDTH, 3)

    def forward(self, x, pair, *, gate):
        return self.mix(x, pair[0]) * gate + pair[1]["shift"]


class Counting(nn.Module):
    """A buffer is changed by the pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", noise(2, 4, WIDTH, seed=9))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.cache[:, 1:2] = self.layer(x)[:, :1]
        return (self.cache * x).sum(-1)


class Remembering(nn.Module):
    """A tensor of a pass is held until the next."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.last = None

    def forward(self, x):
        self.last = self.layer(x)
        return self.last.relu()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(2 * WIDTH, WIDTH, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x):
        states, (hidden, _) = self.lstm(x)
        after, last = self.gru(states)
        h, c = self.cell(x[:, 0], (hidden[0], hidden[1]))
        return after, last, h * c


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 4, 3, 2, 1)
        self.bn = nn.BatchNorm2d(4)
        self.bn.running_mean = noise(4, seed=2)
        self.bn.running_var = noise(4, seed=3).abs() + 0.5
        self.up = nn.ConvTranspose2d(4, 2, 2, 2)
        self.line = nn.Conv1d(2, 2, 3, groups=2, padding="same", dilation=2)
        self.norm = nn.GroupNorm(1, 2)

    def forward(self, x):
        y = F.relu(self.bn(self.c1(x)))
        y = F.max_pool2d(y, 2) + F.avg_pool2d(y, 2) + F.adaptive_avg_pool2d(y, 2)
        y = self.norm(self.up(F.interpolate(y, scale_factor=2, mode="bilinear")))
        return self.line(y.flatten(2))


def sequence():
    return noise(2, 5, WIDTH, seed=4)


def multi_head():
    x = sequence()
    mask = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 5, [False] * 4 + [True]])
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    return attention, (x, x, x), {"attn_mask": mask, "key_padding_mask": padding}


def crossed():
    attention = nn.MultiheadAttention(WIDTH, 2, kdim=6, vdim=4, add_bias_kv=True)
    arguments = (noise(5, 2, WIDTH), noise(3, 2, 6), noise(3, 2, 4))
    return attention, arguments, {"need_weights": False}


def encoder_layer():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (sequence(),), {}


def transformer():
    model = nn.Transformer(WIDTH, 2, 1, 1, 16, batch_first=True, activation="gelu")
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    return model, (sequence(), noise(2, 3, WIDTH)), {"tgt_mask": mask, "tgt_is_causal": True}


def typed(dtype):
    layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, batch_first=True)
    return layer.to(dtype), (sequence().to(dtype), noise(2, 3, WIDTH).to(dtype)), {}


CALLS |= {
    "tied": lambda: (Tied(), (torch.tensor([[3, 0, 7]]),), {}),
    "twice": lambda: (Twice(), (sequence(),), {}),
    "several": lambda: (
        Several(),
        (sequence(), (sequence() + 1, {"shift": noise(3)})),
        {"gate": noise(5, 1)},
    ),
    "counting": lambda: (Counting(), (noise(2, 4, WIDTH),), {}),
    "remembering": lambda: (Remembering(), (sequence(),), {}),
    "recurrent": lambda: (Recurrent(), (sequence(),), {}),
    "images": lambda: (Images(), (noise(2, 3, 8, 8),), {}),
    "multi_head": multi_head,
    "crossed": crossed,
    "encoder_layer": encoder_layer,
    "transformer": transformer,
    "bfloat16": lambda: typed(torch.bfloat16),
    "float64": lambda: typed(torch.float64),
    "one_layer": lambda: (nn.Linear(WIDTH, 3), (sequence(),), {}),
    "no_batch": lambda: (nn.Sequential(nn.Linear(WIDTH, 3), nn.Tanh()), (noise(WIDTH),), {}),
}
