"""What the comparisons with transformers share: random weights, tokens, tolerances, their files."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5
VOCAB = 61


def shaken(model, seed=0):
    """The model with every parameter random: published code starts biases at zero and norms at
    one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
        for name, buffer in model.named_buffers():  # a router's, which no gradient moves
            if name.endswith("score_correction_bias"):
                buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.3)
    return model.eval()


def files(folder):
    from safetensors.torch import load_file

    return {
        name: tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
