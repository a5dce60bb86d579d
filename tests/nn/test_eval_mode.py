"""A model in use: no gradients, no dropout, and training as it was afterwards, whatever happens."""

from __future__ import annotations

import pytest
import torch

import tiny
from glassformer.core.nn import build_model
from glassformer.core.nn.model import inference


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_given_back_as_it_was(training):
    model = build_model(tiny.DECODERS["llama"], seed=1).train(training)
    with inference(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        assert not model(tiny.tokens()).logits.requires_grad
    assert model.training is training
    assert torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), inference(model):
        raise ZeroDivisionError
    assert model.training is training
    assert torch.is_grad_enabled()
