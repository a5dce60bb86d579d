"""Packed weights: the same numbers, only sooner; never stale, never in the way of a gradient."""

from __future__ import annotations

import copy

import pytest
import torch

from glassformer import generate
from glassformer.nn import build_model
from glassformer.nn.packed import Linear, pack, packable, packed, product, unpack, usable
from tiny import DECODERS, VOCAB

pytestmark = pytest.mark.skipif(
    not list(packable(Linear(4, 4))), reason="this processor's kernels have no packed layout"
)
BITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def packed_model(name: str = "gpt2", dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    model = build_model(DECODERS[name], seed=0, dtype=dtype).eval()
    pack(model, None)
    assert all(layer.weight.packed is not None for layer, *_ in packable(model))
    return model


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rows", [(1,), (1, 1), (2, 5), (3, 1), (40,)])
@pytest.mark.parametrize("bias", [True, False])
def test_product_is_the_linear_layer(dtype: torch.dtype, rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(48, 80, bias).to(dtype)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    x = torch.randn(*rows, 48, dtype=dtype)
    with torch.no_grad(), packed(pack(layer, None)):
        expected = torch.nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
        assert usable(x, (layer,)) is not None
        torch.testing.assert_close(layer(x).double(), expected, atol=BITS[dtype], rtol=BITS[dtype])
        strided = torch.randn(*rows, 96, dtype=dtype)[..., ::2]
        torch.testing.assert_close(layer(strided), layer(strided.contiguous()), atol=0, rtol=0)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_model_says_the_same(name: str) -> None:
    model = packed_model(name)
    tokens = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        with packed(pack(model, None)):
            fast = model(tokens).logits
        torch.testing.assert_close(fast, model(tokens).logits, atol=1e-5, rtol=1e-5)


def test_changed_weight_is_used_as_it_is_now() -> None:
    model, tokens = packed_model(), torch.arange(8)[None]
    changed = copy.deepcopy(model)
    assert not any(getattr(layer.weight, "packed", None) for layer, *_ in packable(changed))
    for weight in (model.embed.token.weight, model.decoder.blocks[1].attn.v.weight):
        weight.data.add_(1e-3)  # as a fused optimizer does, unnoticed by PyTorch's count of changes
    changed.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, changed(tokens).logits)
        theirs, copies = pack(changed, None), pack(model, None)
        with packed(theirs | copies):
            assert torch.equal(model(tokens).logits, changed(tokens).logits)
        model.decoder.blocks[0].attn.k.bias.add_(1)  # a joined bias is a copy as well
        with packed(copies):
            plain = model(tokens).logits
        assert torch.equal(model(tokens).logits, plain)
        model.decoder.blocks[0].attn.v.bias.data.add_(1)  # unnoticed
        copies = pack(model, None)
        with packed(copies):
            plain = model(tokens).logits
        torch.testing.assert_close(model(tokens).logits, plain, atol=1e-5, rtol=1e-5)
        model.load_state_dict(build_model(model.config, seed=1).state_dict())
        with packed(copies):
            plain = model(tokens).logits
        assert torch.equal(model(tokens).logits, plain)
        assert model.double()(tokens).logits.dtype == torch.float64


def test_gradients_pass() -> None:
    model, tokens = packed_model(), torch.arange(8)[None]
    model(tokens).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not any(layer.weight.packed for layer, *_ in packable(model))  # a training needs the memory


def test_only_within_the_room_there_is() -> None:
    model = build_model(DECODERS["gpt2"], seed=0)
    size = sum(layer.weight.nbytes for group in packable(model) for layer in group)
    pack(model, size - 1)
    assert not any(getattr(layer.weight, "packed", None) for layer, *_ in packable(model))
    pack(model, size)
    assert all(layer.weight.packed for layer, *_ in packable(model))


def test_generation_packs_for_many_tokens_and_not_within_a_training() -> None:
    model = build_model(DECODERS["llama"], seed=0)
    few = generate(model, None, [1, 2, 3], max_new=8, temperature=0).run().tokens
    assert not any(getattr(layer.weight, "packed", None) for layer, *_ in packable(model))
    model.train()
    plain = generate(model, None, [1, 2, 3], max_new=64, temperature=0).run().tokens
    assert not any(getattr(layer.weight, "packed", None) for layer, *_ in packable(model))
    model.eval()
    fast = generate(model, None, [1, 2, 3], max_new=64, temperature=0).run().tokens
    assert all(layer.weight.packed for layer, *_ in packable(model))
    assert fast == plain and fast[0][:8] == few[0]
    for weight, other in zip(model.parameters(), build_model(model.config, seed=1).parameters(), strict=True):
        weight.data.copy_(other)  # unnoticed by PyTorch's count of changes
    fast = generate(model, None, [1, 2, 3], max_new=64, temperature=0).run().tokens
    unpack(model)
    assert fast == generate(model.train(), None, [1, 2, 3], max_new=64, temperature=0).run().tokens != plain


def test_tied_table_is_packed_once_and_bias_optional() -> None:
    model = packed_model("gpt2")
    hidden = torch.randn(1, 32)
    with torch.no_grad(), packed(pack(model, None)):
        assert usable(hidden, (model.embed.token,)) is not None
        fast = product(hidden, model.embed.token, None)
        torch.testing.assert_close(fast, hidden @ model.embed.token.weight.T, atol=1e-5, rtol=1e-5)
