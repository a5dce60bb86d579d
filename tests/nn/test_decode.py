"""What a generated token costs: no mask, no copy of what is kept, nothing heavy imported on the way
to the first."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from glassformer import save
from glassformer.core.nn import Cache, Mask, build_model
from tiny import DECODERS, VOCAB

PLAIN = ("gpt2", "llama", "qwen3")
START = 10
NEW = 20  # within the 64 columns that a cache begins with


@pytest.fixture
def calls(monkeypatch):
    """Keys, values and options of each call of the fused kernel."""
    kernel = F.scaled_dot_product_attention
    noted = []

    def watched(q, k, v, **options):
        noted.append((k.data_ptr(), v.data_ptr(), options))
        return kernel(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return noted


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_over_a_plain_cache_reaches_the_unmasked_kernel_and_copies_nothing(
    name, dtype, calls, monkeypatch
):
    """How near the truth it is, and a prompt's kernel: nn/test_engines.py."""
    model = build_model(DECODERS[name], seed=0, dtype=dtype).eval()
    cache = Cache(model.config)
    with torch.no_grad():
        model(torch.randint(VOCAB, (1, START)), cache=cache, logits="last")
        places = [(kv.k.data_ptr(), kv.v.data_ptr()) for kv, _ in cache.layers]
        monkeypatch.setattr(Mask, "dense", None)
        calls.clear()
        for _ in range(NEW):
            model(torch.tensor([[1]]), cache=cache, logits="last")
    assert [call[:2] for call in calls] == places * NEW  # the kernel reads the buffers themselves
    assert [(kv.k.data_ptr(), kv.v.data_ptr()) for kv, _ in cache.layers] == places
    for *_, options in calls:
        assert options.get("attn_mask") is None
        assert not options.get("is_causal")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_loading_and_the_first_token_do_not_import_the_compiler(name, tmp_path):
    save(build_model(DECODERS[name], seed=0), tmp_path / "model", layout="hf")
    code = (
        "import sys, glassformer; model, _ = glassformer.load(sys.argv[1])\n"
        "next(iter(glassformer.generate(model, None, [1, 2], temperature=0)))\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)
