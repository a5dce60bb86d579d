"""What the comparisons with transformers share: random weights, tokens, tolerances, their files."""

from __future__ import annotations

import json

import pytest
import torch

from glassformer import families as recipes
from glassformer.formats import store
from seeding import generator_from
from tiny import equal_tensors

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TOLERANCE = 1e-5
VOCAB = 61


def shaken(model, seed=0):
    """The model with every parameter random: published code starts biases at zero and norms at
    one."""
    generator = generator_from(seed)
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


def tokens(rows=3, length=48):
    return torch.randint(0, VOCAB, (rows, length), generator=generator_from(1))


@torch.no_grad()
def difference(a, b, ids):
    return float((a(ids).logits - b(ids).logits).abs().max())


def round_trip(reference, folder, **options):
    """Theirs loaded here, and saved here loaded there: the same logits."""
    reference.save_pretrained(folder / "theirs", **options)
    model, _ = store.load(folder / "theirs")
    assert difference(model, reference, tokens()) <= TOLERANCE
    store.save(model, folder / "ours", layout="hf")
    again = transformers.AutoModelForCausalLM.from_pretrained(folder / "ours").eval()
    assert difference(again, model, tokens()) <= TOLERANCE
    return model, again


def check_both_ways(reference, folder):
    """Theirs -> ours -> theirs: the same logits, files bit for bit, and what they load is what they
    saved."""
    model, again = round_trip(reference, folder)
    assert type(again) is type(reference)
    assert not model.training
    assert difference(again, reference, tokens()) <= TOLERANCE
    assert equal_tensors(files(folder / "theirs"), files(folder / "ours"))
    assert equal_tensors(reference.state_dict(), again.state_dict())


def check_defaults(settings, sizes):
    """A config.json that says only the sizes means what transformers takes it to mean."""
    full = json.loads(json.dumps(settings(**sizes).to_dict()))
    kind = {"model_type": settings.model_type}
    bare, reference = (recipes.read_config({**words, **kind})[1] for words in (sizes, full))
    assert recipes.plain(bare) == recipes.plain(reference)
