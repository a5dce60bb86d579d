"""A dictionary of sparse features of a frozen model's values: a sparse autoencoder or a transcoder.

    features = activation((x - b_dec) W_enc + b_enc)       x: the value at the address
    error    = y - (features W_dec + b_dec)                y: x, or the value at the target
    loss     = |error|² / variance of y                    the share that is not explained

TopK keeps the ``active`` largest. JumpReLU keeps what is above a threshold of each feature, and the loss
draws their mean number to ``active``. N tokens, C and O numbers read and written, F features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...core.config.model import Decoder, Encoder
from ...core.config.objective import Frozen, Objective, Tune
from ...core.config.optimizer import AdamW
from ...core.config.serial import PositiveInt, frozen
from ...core.errors import need

if TYPE_CHECKING:
    from torch import Tensor

    from ...core.training.batches import Batch
    from ...core.training.loss import Loss

REVIVED = 64  # silent features that answer for what the others leave
REVIVAL = 1 / 32  # how much that counts (Gao et al. 2024)
BANDWIDTH = 0.2  # of a JumpReLU's gradient, in thresholds


@frozen
class Features(Objective):
    """Sparse features of a value: a sparse autoencoder (Gao et al. 2024; Rajamanoharan et al. 2024), or
    with ``target`` a transcoder (Dunefsky et al. 2024).

    The model stays as it is. The run's folder is the model with its features: ``features.active`` is
    a value of its passes.
    """

    trains: ClassVar[tuple[str, ...]] = ("features.*",)
    optimizer: ClassVar[Any] = AdamW(lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)
    shapes: ClassVar[tuple[type, ...]] = (Decoder, Encoder)

    address: str = ""  # the value that is read, such as decoder.blocks.1.resid
    target: str = ""  # the value that a transcoder writes; none: the one that is read
    width: PositiveInt = 2048  # features
    active: PositiveInt = 32  # of them at a token: TopK's number, JumpReLU's mean
    activation: Literal["topk", "jumprelu"] = "topk"  # which features stay

    @property
    def smooths_labels(self) -> bool:
        return False

    def check(
        self, model: Any, tokenizer: Any = None, *, examples: bool, tune: Tune | None = None
    ) -> None:
        """UserError where model, kind of data or settings do not fit."""
        super().check(model, tokenizer, examples=examples, tune=tune)
        need(
            bool(self.address),
            "Features learns what one value holds; name it: --train.objective.address "
            "decoder.blocks.1.resid.",
        )
        need(
            self.active < self.width,
            f"train.objective.active is {self.active} of {self.width} features; give fewer.",
        )
        need(
            tune in (None, Frozen(self.trains)),
            "Features trains a dictionary beside the model; leave train.tune out.",
        )

    def with_heads(self, model: Any, labels: int) -> tuple[Any, list[str]]:
        return model, []

    def attach(self, model: Any, batch: Batch, seed: int) -> None:
        """Give the model a new dictionary: random directions, which stand for themselves, around the
        mean of the values of a batch; a JumpReLU's threshold lets ``active`` through."""
        import torch

        from ...formats.dictionaries import Dictionary, attach

        device = next(model.parameters()).device
        with torch.no_grad():
            x, y = self._values(model, batch.to(device))
            draw = torch.Generator().manual_seed(seed)
            sizes = self.width, x.shape[1], y.shape[1]
            rows = [torch.randn(self.width, size, generator=draw).to(x) for size in sizes[1:]]
            decoder = torch.nn.functional.normalize(rows[1])
            encoder = torch.nn.functional.normalize(rows[0]) if self.target else decoder
            W_enc = encoder.T.contiguous()
            b_enc = -x.mean(0) @ W_enc if self.target else x.new_zeros(self.width)
            tensors = {"W_enc": W_enc, "b_enc": b_enc, "W_dec": decoder, "b_dec": y.mean(0)}
            places = self.activation, self.address, self.target, self.active, not self.target
            dictionary = Dictionary(tensors, *places, "this dictionary")
            if self.activation == "jumprelu":
                pre = dictionary.pre(x).topk(self.active + 1).values[:, -1]
                least = pre.mean().clamp(min=1e-6).expand(self.width).clone()
                dictionary.threshold = torch.nn.Parameter(least)
        attach(model, dictionary)

    def _values(self, model: Any, batch: Batch) -> list[Tensor]:
        """Values that are read (N, C) and values to be written (N, O) at the batch's tokens, in fp32."""
        from ...core.training.loss import forward
        from ...formats.dictionaries import values_at

        addresses = (self.address, self.target or self.address)
        model.eval()  # without dropout
        values = values_at(model, addresses, lambda tape: forward(model, batch, tape))
        is_token = slice(None) if batch.pos is None else (batch.pos >= 0).flatten()
        return [value.detach().flatten(0, 1)[is_token].float() for value in values]

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The share of the variance that is not explained, summed over the tokens."""
        import torch

        from ...core.training.loss import Loss

        dictionary, trains = model.features, torch.is_grad_enabled()
        with torch.no_grad():
            x, y = (value.to(dictionary.W_enc.dtype) for value in self._values(model, batch))
            variance = (y - y.mean(0)).square().sum(-1).mean()
        pre = dictionary.pre(x)
        features, penalty = dictionary.activate(pre), x.new_zeros(())
        if self.activation == "jumprelu":
            features, count = _jumprelu(pre, dictionary.threshold)
            penalty = (count / self.active - 1).square()
        error = y - dictionary.decode(features)
        unexplained = error.square().sum(-1) / variance
        total = (unexplained + penalty).sum()
        silent = ~(features > 0).any(0)
        if trains and silent.any():
            remainder = self._revived(dictionary, pre, silent, error.detach())
            total = total + REVIVAL * remainder / variance
        metrics = {
            "unexplained": unexplained.detach().mean(),
            "active": (features > 0).sum(-1).float().mean(),
            "silent": silent.float().mean(),
        }
        return Loss(total, len(x), tokens=len(x), metrics=metrics)

    def _revived(self, dictionary: Any, pre: Tensor, silent: Tensor, error: Tensor) -> Tensor:
        """The square of what the features that are silent in a batch leave of the others' error."""
        indices = silent.nonzero()[:, 0]
        best = pre[:, indices].topk(min(REVIVED, len(indices)))
        features = pre.new_zeros(len(pre), len(indices))
        features = features.scatter(-1, best.indices, best.values.relu())
        remainder: Tensor = (error - features @ dictionary.W_dec[indices]).square().sum()
        return remainder


def _jumprelu(pre: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Features (N, F) and their mean number at a token, whose gradients are those of
    a step that rises over BANDWIDTH (Rajamanoharan et al. 2024)."""
    width = BANDWIDTH * threshold.detach().mean()
    ramp = ((pre - threshold) / width + 0.5).clamp(0, 1)
    gate = (pre > threshold).to(pre) + ramp - ramp.detach()
    return pre.relu() * gate, gate.sum(-1).mean()
