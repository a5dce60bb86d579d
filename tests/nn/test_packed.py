"""Packed weights: the same numbers, only sooner; never stale, never in the way of a gradient."""

from __future__ import annotations

import copy

import pytest
import torch

from glassformer import generate
from glassformer.nn import build_model, lora
from glassformer.nn.packed import Linear, pack, packable, packed, product, together, unpack, usable
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


def test_a_copy_stands_for_a_plain_layer_without_gradients_of_its_own_format_alone() -> None:
    torch.manual_seed(0)
    layer, x = Linear(48, 80).double().float(), torch.randn(3, 48)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    copies = pack(layer, None)
    with packed(copies):
        with torch.no_grad():
            assert usable(x, (layer,)) is not None and usable(x.double(), (layer,)) is None
            with pytest.raises(RuntimeError):  # as without a copy
                layer(x.bfloat16())
        layer(x).square().sum().backward()
        found = [weight.grad.clone() for weight in layer.parameters()]
        assert layer.weight.packed is None
    layer.zero_grad()
    torch.nn.functional.linear(x, layer.weight, layer.bias).square().sum().backward()
    assert all(torch.equal(ours, weight.grad) for ours, weight in zip(found, layer.parameters(), strict=True))


@torch.no_grad()
def test_no_copy_of_what_is_computed_anew_or_has_a_change_beside_it() -> None:
    layer = Linear(16, 16)
    torch.nn.utils.parametrizations.weight_norm(layer)
    assert not list(packable(layer))
    model, tokens = packed_model("llama"), torch.arange(8)[None]
    lora.adapt(model, {"decoder.blocks.0.attn.q": (4, 2.0), "decoder.blocks.1.ffn.down": (4, 2.0)})
    assert not any(getattr(weight, "packed", None) for weight in model.parameters())  # their memory is let go
    for layer in lora.adapted(model).values():
        layer.down.normal_()
        layer.up.normal_()
    plain = model(tokens).logits
    with packed(pack(model, None)):
        torch.testing.assert_close(model(tokens).logits, plain, atol=1e-5, rtol=1e-5)
    for layer in lora.adapted(model).values():
        layer.merge()
    with packed(pack(model, None)):
        torch.testing.assert_close(model(tokens).logits, plain, atol=1e-3, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BITS)
def test_a_new_bias_beside_an_old_matrix(dtype: torch.dtype) -> None:
    """As a fused optimizer leaves it: the matrix as it was, a bias changed without a count."""
    model, x = packed_model("gpt2", dtype), torch.randn(2, 5, 32).to(dtype)
    attn = model.decoder.blocks[0].attn
    for layer in (attn.q, attn.k, attn.v):
        layer.bias.data.add_(3)
    with packed(pack(model, None)):
        for found, layer in zip(together(x, attn.q, attn.k, attn.v), (attn.q, attn.k, attn.v), strict=True):
            wanted = torch.nn.functional.linear(x, layer.weight, layer.bias)
            torch.testing.assert_close(found, wanted, atol=BITS[dtype], rtol=BITS[dtype])
