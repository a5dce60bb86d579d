"""What a generated token costs: no mask, no copy of what is kept, nothing heavy imported on the way
to the first."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from glassformer import save
from glassformer.core.nn import Cache, Mask, build_model
from glassformer.core.nn.engines import AttentionInputs, attend, choose
from tiny import DECODERS, VOCAB

PLAIN = ("gpt2", "llama", "qwen3")
START, NEW = 10, 20  # within the 64 columns that a cache begins with


def prefilled(name: str, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, Cache]:
    """A model that has read a prompt, and its cache."""
    model = build_model(DECODERS[name], seed=0, dtype=dtype).eval()
    cache = Cache(model.config)
    with torch.no_grad():
        model(torch.randint(VOCAB, (1, START)), cache=cache, logits="last")
    return model, cache


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_over_a_plain_cache_reaches_the_unmasked_kernel(name, dtype, monkeypatch):
    model, cache = prefilled(name, dtype)
    kernel, calls = F.scaled_dot_product_attention, []

    def watched(q, k, v, **options):
        calls.append(options)
        return kernel(q, k, v, **options)

    def no_mask(self):
        raise AssertionError("a mask was built")

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(Mask, "dense", no_mask)
    with torch.no_grad():
        for _ in range(NEW):
            model(torch.tensor([[1]]), cache=cache, logits="last")
    assert len(calls) == NEW * len(cache.layers)
    assert all(call.get("attn_mask") is None and not call.get("is_causal") for call in calls)


@pytest.mark.parametrize("name", PLAIN)
def test_a_token_copies_nothing_of_the_cache(name, monkeypatch):
    model, cache = prefilled(name)
    places = [(kv.k.data_ptr(), kv.v.data_ptr()) for kv, _ in cache.layers]
    kernel, calls = F.scaled_dot_product_attention, []

    def watched(q, k, v, **options):
        calls.append((k.data_ptr(), v.data_ptr()))
        return kernel(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    with torch.no_grad():
        for _ in range(NEW):
            model(torch.tensor([[1]]), cache=cache, logits="last")
    assert calls == places * NEW  # the kernel reads the buffers themselves
    assert [(kv.k.data_ptr(), kv.v.data_ptr()) for kv, _ in cache.layers] == places


@pytest.mark.parametrize("name", PLAIN)
def test_one_query_in_bf16_is_as_near_the_truth_as_the_written_out_attention(name):
    model, _ = prefilled(name, torch.bfloat16)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    eager.engine = exact.engine = "eager"
    errors = []
    # one text's ratio of errors varies by a factor of 2
    for tokens in torch.randint(VOCAB, (64, 1, START)):
        cache = Cache(model.config)
        with torch.no_grad():
            for item in tokens.T:
                fast = model(item[None], cache=cache, logits="last").logits
            law, true = (second(tokens, logits="last").logits for second in (eager, exact))
        errors.append(torch.stack([(x.double() - true).square().mean() for x in (fast, law)]))
    fast, law = torch.stack(errors).mean(0).sqrt()
    assert fast < 1.3 * law


@pytest.mark.parametrize(
    "shape", [(2, 4, 4, 150, 16), (1, 8, 2, 64, 8), (3, 6, 1, 129, 32)], ids=str
)
def test_a_prompt_in_bf16_is_nearly_as_near_the_truth_as_the_fused_kernel(shape, monkeypatch):
    batch, heads, shared, length, dim = shape
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(batch, h, length, dim, generator=draw).mul(2).bfloat16()
        for h in (heads, shared, shared)
    )
    pos = torch.arange(length)[None]
    mask = Mask(pos, pos, causal=True, contiguous=True)
    fields = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    true = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), **fields)
    fused = F.scaled_dot_product_attention(q, k, v, **fields)
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)  # ours does without
    inputs = AttentionInputs(q, k, v, mask, None, 0.3)
    assert choose(inputs).name == "prefill"
    actual = attend(inputs)
    assert actual.dtype == torch.bfloat16
    errors = [(x.double() - true).abs().mean() for x in (actual, fused)]
    assert errors[0] < 1.3 * errors[1]
    torch.testing.assert_close(actual.double(), true, rtol=2**-7, atol=2**-6)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_loading_and_the_first_token_do_not_import_the_compiler(name, tmp_path):
    save(build_model(DECODERS[name], seed=0), tmp_path / "model", layout="hf")
    code = (
        "import sys, glassformer; model, _ = glassformer.load(sys.argv[1])\n"
        "next(iter(glassformer.generate(model, None, [1, 2], temperature=0)))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)
