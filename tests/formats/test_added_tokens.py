"""A model takes more special tokens: the old logits stay, the new rows are means, transformers opens it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.formats import store
from glassformer.formats.added_tokens import add_tokens
from mistakes import mistake

NEW = ("<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def tokenizer():
    return train("bpe", ["the cat sat on the mat"] * 4, 300)


@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("tied", [True, False])
def test_rows_begin_as_the_mean_and_the_others_stay(tokenizer, tied, spare, tmp_path):
    base = tiny.DECODERS["llama"]
    embed = dataclasses.replace(base.embed, vocab=tokenizer.size + spare)
    head = dataclasses.replace(base.head, tied=tied)
    model = tiny.model(dataclasses.replace(base, embed=embed, head=head))
    tokenizer.chat_template = "{{ messages }}"
    wider, grown = add_tokens(model, tokenizer, NEW)
    assert grown.size == tokenizer.size + 2
    assert wider.config.embed.vocab == tokenizer.size + max(2, spare)
    assert [grown.specials[name] for name in NEW] == [tokenizer.size, tokenizer.size + 1]
    assert grown.chat_template == tokenizer.chat_template
    text = "the cat"
    assert grown.encode(text) == tokenizer.encode(text)
    ids = torch.tensor([tokenizer.encode(text)])
    assert_close(wider(ids).logits[..., : tokenizer.size], model(ids).logits[..., : tokenizer.size])
    rows = wider.embed.token.weight.detach()
    assert_close(rows[tokenizer.size], rows[: tokenizer.size].mean(0))
    transformers = pytest.importorskip("transformers")
    store.save(wider, tmp_path, grown, layout="hf")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    other_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert other_tokenizer.chat_template == "{{ messages }}"
    text = f"{NEW[0]}the cat{NEW[1]}"
    ids = other_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == grown.encode(text, special=True)
    ids = torch.tensor([ids])
    assert_close(reference(ids).logits, wider(ids).logits, atol=1e-4, rtol=1e-4)
    again, reloaded_tokenizer = store.load(tmp_path)
    assert reloaded_tokenizer.chat_template == "{{ messages }}"
    assert_close(again(ids).logits, wider(ids).logits)


@pytest.mark.parametrize(
    ("names", "message"),
    [(("the",), 'has "the" already'), (("<a>", "<a>"), "twice"), (("",), "empty name")],
)
def test_a_token_that_cannot_be_added(names, message, tokenizer):
    model = build_model(tiny.DECODERS["llama"], seed=1)
    with mistake(message):
        add_tokens(model, tokenizer, names)
