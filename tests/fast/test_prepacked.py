"""Prepacked weights: the same numbers, only sooner; never stale, never in the way of gradients or
other threads."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import tiny
from glassformer import generate
from glassformer.core.nn import build_model
from glassformer.core.nn.layers import Linear, fused_linear
from glassformer.core.nn.replace import replace_modules
from glassformer.fast.packed_layers import PrepackedLinear, PrepackedProjection
from glassformer.fast.prepacked import packable, prepack, unpack
from glassformer.formats import tuning
from seeding import generator_from
from tiny import DECODERS, VOCAB

pytestmark = pytest.mark.skipif(
    not list(packable(Linear(4, 4))), reason="this processor's kernels have no packed layout"
)
BITS = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SWAPPED = PrepackedLinear | PrepackedProjection


def keeps_copies(model):
    """True where copies of the model's weights are kept, which a view without room for new ones
    takes."""
    return bool(prepack(model, 0).packed or prepack(model, 0, exact=True).packed)


def decoder(name="gpt2", dtype=torch.float32, seed=0):
    return build_model(DECODERS[name], seed=seed, dtype=dtype).eval()


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rows", [(1,), (1, 1), (2, 5), (3, 1), (40,)])
@pytest.mark.parametrize("bias", [True, False])
def test_product_is_the_linear_layer(dtype, rows, bias):
    torch.manual_seed(0)
    layer = Linear(48, 80, bias).to(dtype)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    x = torch.randn(*rows, 48, dtype=dtype)
    fast = prepack(layer).model
    with torch.no_grad():
        expected = F.linear(
            x.double(), layer.weight.double(), layer.bias.double() if bias else None
        )
        assert isinstance(fast, PrepackedLinear)
        assert fast.packed.usable(x)
        assert_close(fast(x).double(), expected, atol=BITS[dtype], rtol=BITS[dtype])
        strided = torch.randn(*rows, 96, dtype=dtype)[..., ::2]
        assert_close(fast(strided), fast(strided.contiguous()), atol=0, rtol=0)
        assert fast(x[:0]).shape == (0, *x.shape[1:-1], 80)


def test_a_row_in_fp16_has_its_bits_alone_and_beside_others():
    torch.manual_seed(0)
    model = decoder().half()
    assert not prepack(model).packed  # PyTorch's copies are of fp32 and bf16
    view = prepack(model, exact=True)
    assert view.complete
    wide = 2 * sum(weight.nbytes for packed in view.packed for weight in packed.group.weights)
    assert wide == sum(packed.group.nbytes for packed in view.packed)
    layers = [layer for layer in view.model.modules() if isinstance(layer, PrepackedLinear)]
    alone = [layer for layer in layers if len(layer.packed.rows) == 1]
    assert alone
    for layer in alone:
        x = torch.randn(67, layer.weight.shape[1]).half()
        with torch.no_grad():
            y, bias = layer(x), 0 if layer.bias is None else layer.bias.float()
            assert torch.equal(y, torch.cat([layer(row[None]) for row in x]))
        expected = x.float() @ layer.weight.detach().float().T + bias
        assert_close(y.float(), expected, atol=1e-3, rtol=1e-3)


def assert_same_logits(a, b, *inputs):
    with torch.no_grad():
        assert_close(a(*inputs).logits, b(*inputs).logits, atol=1e-5, rtol=1e-5)


def greedy_tokens(model, count=64):
    return generate(model, None, [1, 2, 3], max_new=count, temperature=0).run().tokens[0]


def gradients(model, compute):
    model.zero_grad()
    compute().sum().backward()
    return [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.parametrize("name", [*sorted(DECODERS), "vaswani"])
def test_a_view_of_a_model_says_the_same(name):
    model = tiny.model(name, 0)
    modules = list(model.modules())
    paths = [path for path, _ in packable(model)]
    view = prepack(model)
    swapped = {path for path, module in view.model.named_modules() if isinstance(module, SWAPPED)}
    assert swapped == {path for group in paths for path in group}
    assert view.complete
    assert view.current()
    assert list(model.modules()) == modules
    assert not any(isinstance(module, SWAPPED) for module in modules)
    assert all(a is b for a, b in zip(model.parameters(), view.model.parameters(), strict=True))
    tokens = torch.randint(VOCAB, (2, 9), generator=generator_from(0))
    assert_same_logits(view.model, model, *[tokens] * (2 if name == "vaswani" else 1))


def test_changed_weight_is_used_as_it_is_now():
    model = decoder()
    tokens = torch.arange(8)[None]
    prepack(model)
    changed = copy.deepcopy(model)
    assert keeps_copies(model)
    assert not keeps_copies(changed)
    assert not keeps_copies(pickle.loads(pickle.dumps(model)))
    for weight in (model.embed.token.weight, model.decoder.blocks[1].attn.v.weight):
        weight.data.add_(1e-3)  # as a fused optimizer does, unnoticed by PyTorch's count of changes
    changed.load_state_dict(model.state_dict())
    view = prepack(model)
    reference = prepack(changed)
    with torch.no_grad():
        assert torch.equal(view.model(tokens).logits, reference.model(tokens).logits)
        model.decoder.blocks[0].attn.k.bias.add_(1)  # a joined bias is a copy as well
    assert not view.current()
    assert reference.current()
    model.decoder.blocks[0].attn.v.bias.data.add_(1)  # unnoticed
    view = prepack(model)
    assert_same_logits(view.model, model, tokens)
    model.load_state_dict(decoder(seed=1).state_dict())
    assert not view.current()
    model.double()
    assert not view.current()
    assert not keeps_copies(model)
    assert not prepack(model).packed
    assert prepack(model).model is model
    assert model(tokens).logits.dtype == torch.float64


def test_a_generation_goes_on_with_weights_as_they_are():
    """Weights that change under a generation are seen at the next token."""
    model = decoder()
    second = decoder(seed=1)
    steps = iter(generate(model, None, [1, 2, 3], max_new=40, temperature=0))
    for _ in range(3):
        next(steps)
    assert keeps_copies(model)
    model.load_state_dict(second.state_dict())
    logprob = next(steps).logprob
    model.load_state_dict(decoder().state_dict())
    assert next(steps).logprob != pytest.approx(logprob)
    assert keeps_copies(second) is False


def test_gradients_pass_and_a_training_has_the_memory():
    model = decoder()
    tokens = torch.arange(8)[None]
    view = prepack(model)
    results = (gradients(model, lambda run=run: run(tokens).logits) for run in (view.model, model))
    assert all(map(torch.equal, *results))
    copies = [weakref.ref(packed.matrix) for packed in view.packed]
    assert keeps_copies(model.eval())
    model.train()
    assert not keeps_copies(model)
    del view
    assert not any(copied() is not None for copied in copies)


@pytest.mark.parametrize("make", [decoder, lambda: Linear(16, 16)])
def test_copies_live_no_longer_than_their_model(make):
    model = make()
    view = prepack(model)
    copies = [weakref.ref(packed.matrix) for packed in view.packed]
    del view, model
    gc.collect()
    assert copies
    assert not any(copied() is not None for copied in copies)


def test_only_within_the_room_there_is():
    model = decoder()
    size = sum(group.nbytes for _, group in packable(model))
    assert not prepack(model, size - 1).packed
    assert not keeps_copies(model)
    assert prepack(model, size).complete
    assert prepack(model, 0).complete
    with torch.no_grad():
        model.decoder.blocks[0].ffn.up.weight.add_(1)
    view = prepack(model, 0)
    assert view.current()
    assert not view.complete
    assert len(view.packed) == len(list(packable(model))) - 1
    unpack(model)
    assert not keeps_copies(model)


def test_generation_prepacks_for_many_tokens_and_not_within_a_training():
    model = build_model(DECODERS["llama"], seed=0)
    assert model.training
    few = greedy_tokens(model.eval(), 8)
    assert not keeps_copies(model)
    plain = greedy_tokens(model.train())
    assert model.training
    assert not keeps_copies(model)
    fast = greedy_tokens(model.eval())
    assert keeps_copies(model)
    assert fast == plain
    assert fast[:8] == few
    pairs = zip(model.parameters(), decoder("llama", seed=1).parameters(), strict=True)
    for weight, parameter in pairs:
        weight.data.copy_(parameter)  # unnoticed by PyTorch's count of changes
    assert greedy_tokens(model) == greedy_tokens(model.train()) != plain


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_threads_generate_at_once(name):
    """Several threads with one model say what one alone says, bit for bit, while others look and
    forget the copies."""
    model = decoder(name)
    tokens = torch.arange(8)[None]
    prepack(model)

    def tell(seed):
        return generate(model, None, [[1, 2, 3], [4, 5]], max_new=40, seed=seed).run().logprobs

    alone = [tell(seed) for seed in range(4)]
    logits = model(tokens).logits
    unpack(model)
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(tell, list(range(4)) * 3)
        for _ in range(20):
            assert torch.equal(model(tokens).logits, logits)
            unpack(model)
        assert list(results) == alone * 3
    assert not any(isinstance(module, SWAPPED) for module in model.modules())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_table_is_prepacked_tied_or_not(name):
    model = decoder(name)
    x = torch.randn(1, 32)
    head = prepack(model).model.head.proj
    assert isinstance(head, PrepackedProjection)
    assert (head.weight is None) == (name == "gpt2")
    with torch.no_grad():
        expected = x @ model.head.table(model.embed).T
        result = head(x, model.embed.token.weight * 0)
    assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_a_copy_stands_for_a_plain_layer_without_gradients_of_its_own_format_alone():
    torch.manual_seed(0)
    layer = Linear(48, 80).double().float()
    x = torch.randn(3, 48)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight)
    fast = prepack(layer).model
    with torch.no_grad():
        assert fast.packed.usable(x)
        assert not fast.packed.usable(x.double())
        with pytest.raises(RuntimeError):  # as without a copy
            fast(x.bfloat16())
    result = gradients(layer, lambda: fast(x).square())
    expected = gradients(layer, lambda: F.linear(x, layer.weight, layer.bias).square())
    assert all(map(torch.equal, result, expected))


class Doubled(Linear):
    """A linear layer of somebody's own, which makes more of x than its weight does."""

    def forward(self, x):
        return 2 * super().forward(x)


@torch.no_grad()
def test_no_copy_of_what_is_computed_anew_or_has_a_change_beside_it():
    layer = Linear(16, 16)
    torch.nn.utils.parametrizations.weight_norm(layer)
    assert not list(packable(layer))
    assert not list(packable(Doubled(16, 16)))
    model = decoder("llama")
    tokens = torch.arange(8)[None]
    prepack(model)
    tuning.adapt(
        model, {"decoder.blocks.0.attn.q": (4, 2.0), "decoder.blocks.1.ffn.down": (4, 2.0)}
    )
    assert not keeps_copies(model)  # their memory is let go
    for layer in tuning.adapted(model).values():
        layer.down.normal_()
        layer.up.normal_()
    plain = model(tokens).logits
    assert_close(prepack(model).model(tokens).logits, plain, atol=1e-5, rtol=1e-5)
    for layer in tuning.adapted(model).values():
        layer.merge()
    view = prepack(model)
    assert view.complete
    assert isinstance(view.model.decoder.blocks[0].attn.q, PrepackedLinear)
    assert_close(view.model(tokens).logits, plain, atol=1e-3, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dtype", BITS)
def test_a_new_bias_beside_an_old_matrix(dtype):
    """A fused optimizer leaves it so: the matrix as it was, a bias changed without a count."""
    model = decoder("gpt2", dtype)
    x = torch.randn(2, 5, 32).to(dtype)
    attn = model.decoder.blocks[0].attn
    matrices = [packed.matrix for packed in prepack(model).packed]
    for layer in (attn.q, attn.k, attn.v):
        layer.bias.data.add_(3)
    view = prepack(model)
    assert all(packed.matrix is old for packed, old in zip(view.packed, matrices, strict=True))
    fast = view.model.decoder.blocks[0].attn
    for result, layer in zip(
        fused_linear(x, fast.q, fast.k, fast.v), (attn.q, attn.k, attn.v), strict=True
    ):
        expected = F.linear(x, layer.weight, layer.bias)
        assert_close(result, expected, atol=BITS[dtype], rtol=BITS[dtype])


def test_a_replaced_module_leaves_the_others_where_they_are():
    model = decoder("gpt2")
    replacement = Linear(32, 32)
    first, block = model.decoder.blocks
    view = replace_modules(model, {block.attn.out: replacement})
    replaced = view.decoder.blocks[1]
    assert replaced.attn.out is replacement
    assert block.attn.out is not replacement
    assert view.decoder.blocks[0] is first
    assert replaced.ffn is block.ffn
    assert view.config is model.config
    assert replaced.attn.path == block.attn.path
