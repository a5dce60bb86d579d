"""The end of the context: it is told with the way out, and with ``slide`` it is no end."""

from __future__ import annotations

import pytest
import torch

import glassformer
import tiny
from glassformer import config as c
from glassformer.core.generation import generate
from glassformer.core.tokenizer import train as train_tokenizer
from mistakes import mistake

CONTEXT = 12


def decoder(mask_rule=c.Full(), previous_token_embeddings=0):
    block = c.Block(c.Attention(2, mask=mask_rule), c.GatedMLP(24), c.RMSNorm())
    stack = c.Stack(2, (block,), c.Rotary(), last_norm=c.RMSNorm())
    init = c.Init(std=0.2, embed_std=0.4, residual="plain")
    return tiny.model(
        c.Decoder(
            16,
            CONTEXT,
            c.Embed(11, previous_token_embeddings=previous_token_embeddings),
            stack,
            init=init,
        ),
        seed=3,
    )


def by_hand(model, prompt, count):
    """The likeliest tokens one by one, without a cache: where the context is full its last half is
    all there is."""
    window = list(prompt)
    outputs = []
    while len(outputs) < count:
        if len(window) > CONTEXT:
            window = window[-(CONTEXT // 2) :]
        with torch.no_grad():
            token = int(model(torch.tensor([window])).logits[0, -1].argmax())
        window.append(token)
        outputs.append(token)
    return outputs


@pytest.mark.parametrize(
    "model",
    [decoder(), decoder(c.Window(4)), decoder(previous_token_embeddings=2)],
    ids=["full", "window", "previous_token_embeddings"],
)
def test_a_slid_context_says_what_the_model_says_after_its_last_half(model):
    def run(prompts, count, **options):
        return generate(model, None, prompts, max_new=count, **options).run()

    # each is full at another moment
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [3] * CONTEXT, [7]]
    together = run(prompts, 40, temperature=0.0, slide=True)
    assert together.tokens == [by_hand(model, prompt, 40) for prompt in prompts]
    assert together.finishes == ["length"] * 4
    drawn = run(prompts, 30, seed=5, slide=True).tokens
    assert drawn == [run(prompt, 30, seed=5, slide=True).tokens[0] for prompt in prompts]
    short = run(prompts, 40, temperature=0.0)
    assert short.finishes == ["context"] * 4
    for long, tokens in zip(together.tokens, short.tokens, strict=True):
        assert long[: len(tokens)] == tokens


def test_a_prompt_longer_than_the_context_slides_too(folder, terminal):
    model = decoder()
    prompt = [1, 2, 3, 4, 5] * 8
    output = generate(model, None, [prompt, [1, 2]], max_new=20, temperature=0.0, slide=True).run()
    assert output.tokens == [by_hand(model, prompt, 20), by_hand(model, [1, 2], 20)]
    line = f"generate {folder} {'abc' * 20}"
    assert "--slide" in terminal.refused(line)
    terminal(f"{line} --slide --max-new 5")


def test_what_cannot_slide():
    with mistake("needs max_new"):
        generate(decoder(), None, [1], max_new=None, slide=True)


@pytest.fixture
def folder(tmp_path):
    tokenizer = train_tokenizer("char", ["abcdefghijk"], specials=())
    glassformer.save(decoder(), tmp_path, tokenizer, layout="glassformer")
    return tmp_path


def test_the_end_of_the_context_is_told_with_the_way_out(folder, terminal):
    line = f"generate {folder} abc --max-new 40 --seed 1 --top-k 5"
    short = terminal(line)
    assert (
        "Ended at the model's context of 12 tokens; --slide goes on, reading the last 6 again."
        in terminal.notes
    )
    assert terminal(f"{line} --slide").startswith(short.rstrip("\n"))
    assert "context" not in terminal.notes
    assert terminal.json(line)["rows"][0]["finish"] == "context"
