"""MiniTransformerLM: a whole language model

The smallest that has every part: vocabulary 50, width 16, 2 blocks of 2 heads, feed-forward 64,
post-norm, sinusoidal positions, context 10, a head with a bias. As it is often published it has
8,210 parameters, it may look at the future, and it is trained on random numbers. Four things are
yours:

1. the causal mask, so that it does not see what it has to say;
2. the head tied to the embedding (one matrix does both): 7,410 parameters;
3. a real training loop;
4. real text instead of random numbers: windows of a text, the targets one further.

Your code gives the published figures again, after torch.manual_seed(42) and on random data: the
untied model's first loss without a mask, 4.22294 (ln 50 = 3.912 is guessing), and five steps of
Adam with the mask and the tied head, 12.4078, 8.8194, 6.9047, 5.6511, 4.8191.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 8.1
SECONDS = 40
POINTS = 20
HINTS = (
    "torch.nn.TransformerEncoderLayer takes src_mask, True where a query may NOT look: the upper "
    "triangle.",
    "Two modules may share one parameter: self.head.weight = self.embed.weight.",
    "The loop: loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()); zero_grad, backward, "
    "step.",
    "A window that begins at i is x = ids[i : i + length], y = ids[i + 1 : i + 1 + length].",
)

# %% yours
import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCAB, WIDTH, HEADS, BLOCKS, HIDDEN, LENGTH = 50, 16, 2, 2, 64, 10


def positions(length: int, dim: int) -> Tensor:
    """Sines and cosines (length, dim), as in the exercise sinusoidal-positions."""
    angle = torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, dim, 2) / dim)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


class MiniTransformerLM(nn.Module):
    """tokens (B, T) -> logits (B, T, 50)."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        layer = nn.TransformerEncoderLayer
        self.blocks = nn.ModuleList(
            layer(WIDTH, HEADS, HIDDEN, dropout=0.0, batch_first=True) for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCAB)
        if tied:
            self.tie()

    def tie(self) -> None:
        """From now on the head's matrix is the embedding's."""
        # TODO: one parameter for both
        self.head.weight = self.embed.weight
        # END

    def mask(self, length: int) -> Tensor:
        """Booleans (length, length), True where a query may NOT look (as PyTorch's layers have
        it)."""
        # TODO: whatever comes after the query
        return torch.ones(length, length, dtype=torch.bool).triu(1)
        # END

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + positions(tokens.shape[1], WIDTH)
        for block in self.blocks:
            x = block(x, src_mask=self.mask(tokens.shape[1]))
        return self.head(x)


def windows(ids: Tensor, starts: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """ids (N,) of a text, starts (B,) -> inputs (B, length) that begin there, and targets: the
    same, one further on."""
    # TODO: a row for each start
    at = starts[:, None] + torch.arange(length)
    return ids[at], ids[at + 1]
    # END


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]], lr: float) -> list[float]:
    """One step of Adam for each batch (inputs, targets); the loss before each step: the mean over
    all tokens."""
    # TODO: loss, gradients, step; each time from fresh gradients
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
    # END


# %% check


def check(learner: Any, report: CheckReport) -> None:
    for tied, size in ((False, 8210), (True, 7410)):
        model = learner.MiniTransformerLM(tied=tied)
        report.equal(
            f"the parameters of the {'tied' if tied else 'untied'} model",
            sum(weight.numel() for weight in model.parameters()),
            size,
            look="tied means one and the same parameter, not a copy; leave the others as they are",
        )
    report.say("8,210 parameters untied, 7,410 tied: as published")

    length = int(report.randint(4, 9, (1,)))
    hidden = MiniTransformerLM().mask(length)
    slips = {
        "the mask: True is what may NOT be seen here": ~hidden,
        "one off: a token sees itself": ~hidden.T,
    }
    report.equal(f"mask({length})", model.mask(length), hidden, slips=slips)

    ids, starts = report.randint(0, VOCAB, (60,)), report.randint(0, 40, (4,))
    result = learner.windows(ids, starts, LENGTH)
    inputs, targets = windows(ids, starts, LENGTH)
    report.equal("the inputs of windows", result[0], inputs)
    slips = {"the targets: one further on; these are the inputs again": inputs}
    report.equal("the targets of windows", result[1], targets, slips=slips)

    def losses(train_model: Any, seed: int, batches: Any = None) -> list[float]:
        torch.manual_seed(seed)  # the published order: inputs, targets, then the model
        batches = batches or [tuple(torch.randint(0, VOCAB, (2, 4, LENGTH)))] * 5
        return train_model(learner.MiniTransformerLM(tied=True), batches, 0.01)

    seed = report.random.randrange(10_000)
    report.equal(
        "the losses of five steps",
        losses(learner.train, seed),
        losses(train, seed),
        tolerance=1e-3,
        look="the loss before each step, the mean over all tokens; fresh gradients each time, since "
        "PyTorch adds them up (zero_grad); Adam with the rate that is given",
    )
    report.say("the mask, the windows and five steps of Adam on random data are right")
    published = ", ".join(f"{loss:.4f}" for loss in losses(learner.train, 42))
    report.say(f"with mask and tied head after manual_seed(42): {published}")
    report.say(
        "published: 12.4078, 8.8194, 6.9047, 5.6511, 4.8191 (the same as long as your model "
        "draws its weights as given)"
    )
    torch.manual_seed(42)
    x, y = torch.randint(0, VOCAB, (2, 4, LENGTH))
    model = learner.MiniTransformerLM(tied=False)
    model.mask = lambda length: torch.zeros(length, length, dtype=torch.bool)
    first = float(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))
    report.say(
        f"the untied model's first loss after manual_seed(42): {first:.5f} without a mask "
        "(published: 4.22294)"
    )

    text = ". ".join(real_model.texts())
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    batches = [
        learner.windows(ids, report.randint(0, len(ids) - LENGTH, (16,)), LENGTH)
        for _ in range(200)
    ]
    torch.manual_seed(seed)
    model = learner.MiniTransformerLM(tied=True)
    fell = learner.train(model, batches, 0.01)
    report.true(
        fell[-1] < 2.3,
        f"200 steps on real text end at a loss of {fell[-1]:.3f}; below 2.3 is expected.",
    )
    report.say(f"200 steps on a real text: {fell[0]:.3f} to {fell[-1]:.3f}")
    reference, name = family(model)(inputs).logits, "your weights in our own library's model"
    report.equal(name, reference, model(inputs), tolerance=1e-3)
    report.say("your trained weights run in glassformer's own 2017 blocks: the same logits")


def family(of: Any) -> Any:
    """The same model from the library's blocks, with the learner's weights."""
    from glassformer import config as c
    from glassformer.core.nn import build_model

    attention, relu = c.Attention(HEADS, bias=True), c.MLP(HIDDEN, "relu", bias=True)
    stack = c.Stack(BLOCKS, (c.Block(attention, relu, c.LayerNorm(), "post"),), c.Sinusoidal())
    model: Any = build_model(
        c.Decoder(WIDTH, LENGTH, c.Embed(VOCAB), stack, c.Head(tied=True, bias=True)), seed=0
    )
    names = {"attn.out": "self_attn.out_proj", "attn_norm": "norm1", "ffn_norm": "norm2"}
    names |= {"ffn.up": "linear1", "ffn.down": "linear2"}
    weights = {"embed.token.weight": of.embed.weight, "head.proj.bias": of.head.bias}
    for block, layer in enumerate(of.blocks):
        layer = layer.state_dict()
        for kind in ("weight", "bias"):
            tensors = {name: layer[f"{torch_name}.{kind}"] for name, torch_name in names.items()}
            chunks = layer[f"self_attn.in_proj_{kind}"].chunk(3)
            tensors |= zip(("attn.q", "attn.k", "attn.v"), chunks, strict=True)
            weights |= {f"decoder.blocks.{block}.{name}.{kind}": w for name, w in tensors.items()}
    model.load_state_dict(weights, strict=False)
    return model.eval()
