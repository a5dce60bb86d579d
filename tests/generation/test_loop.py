"""Generation obeys the laws: cached = uncached, padded = alone, batch = one by one, fork = apart;
it ends well."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import glassformer
from glassformer import config as c
from glassformer.core.errors import UserError
from glassformer.core.generation import Generation, generate
from glassformer.core.generation.session import Session, pad_left
from glassformer.core.nn import Cache, Model, build_model

VOCAB, CONTEXT = 61, 48


def decoder(
    position: c.Position,
    mask_rule: c.MaskRule = c.Full(),
    think: c.FeedForward = c.GatedMLP(48),
    **attention: int,
) -> c.Decoder:
    """Two small blocks; with a window, the second block sees everything."""
    blocks = tuple(
        c.Block(c.Attention(heads=4, mask=reach, **attention), think, c.RMSNorm())
        for reach in dict.fromkeys((mask_rule, c.Full()))
    )
    stack = c.Stack(2, blocks, position, last_norm=c.RMSNorm())
    return c.Decoder(
        32, CONTEXT, c.Embed(VOCAB), stack, init=c.Init(std=0.15, embed_std=0.3, residual="plain")
    )


KINDS: dict[str, c.Decoder] = {
    "rotary": decoder(c.Rotary(), kv_heads=2),
    "learned": decoder(c.Learned(CONTEXT)),
    "sinusoidal": decoder(c.Sinusoidal()),
    "alibi": decoder(c.Alibi()),
    "relative": decoder(c.RelativeBias(8, 16)),
    "experts": decoder(c.Rotary(), think=c.MoE(4, 2, c.GatedMLP(24))),
    "window": decoder(c.Rotary(), c.Window(5)),
    "window alibi": decoder(c.Alibi(), c.Window(7), kv_heads=1),
}
PROMPTS = [
    [5, 9, 2, 33, 1, 60, 7, 8, 21],
    [4],
    [11, 12, 13, 14],
    [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8],
]


@pytest.fixture(params=KINDS)
def cfg(request: pytest.FixtureRequest) -> c.Decoder:
    return KINDS[request.param]


@pytest.fixture
def model(cfg: c.Decoder) -> Model:
    return build_model(cfg, seed=7).eval()


@pytest.fixture(scope="module")
def rotary() -> Model:
    return build_model(KINDS["rotary"], seed=7).eval()


@torch.no_grad()
def recomputed(model: Model, ids: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens without any cache, and the logits each was taken from."""
    row, calls = list(ids), []
    for _ in range(count):
        calls.append(model(torch.tensor([row])).logits[0, -1])
        row.append(int(calls[-1].argmax()))
    return row[len(ids) :], torch.stack(calls)


def greedy(model: Model, prompt: list[int] | list[list[int]], count: int = 20) -> Generation:
    return generate(model, None, prompt, max_new=count, temperature=0).run()


# ----------------------------------------------------------------------------------------- laws


@torch.no_grad()
def test_cached_is_uncached(model):
    for prompt in PROMPTS:
        tokens, logits = recomputed(model, prompt, 20)
        result = greedy(model, prompt)
        assert result.tokens == [tokens]
        expected = logits.log_softmax(-1).amax(-1)
        torch.testing.assert_close(torch.tensor(result.logprobs[0]), expected, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(1,), (2, 3), (7, 1, 4), (12, 5)])
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_any_chunking_gives_the_same_logits(cfg, sizes, dtype, near):
    model = build_model(cfg, seed=7, dtype=dtype).eval()
    tokens = torch.randint(VOCAB, (2, 40), generator=torch.Generator().manual_seed(1))
    cache, pieces, remaining = Cache(model.config), [], tokens
    for size in itertools.cycle(sizes):
        if not remaining.numel():
            break
        pieces.append(model(remaining[:, :size], cache=cache).logits)
        remaining = remaining[:, size:]
    torch.testing.assert_close(torch.cat(pieces, 1), model(tokens).logits, atol=near, rtol=0)


def test_a_batch_is_one_by_one(model):
    together, alone = greedy(model, PROMPTS), [greedy(model, prompt) for prompt in PROMPTS]
    assert together.tokens == [item.tokens[0] for item in alone]
    reference = torch.tensor([item.logprobs[0] for item in alone])
    torch.testing.assert_close(torch.tensor(together.logprobs), reference, atol=1e-5, rtol=0)


@torch.no_grad()
def test_padded_is_unpadded(model):
    tokens, pos = pad_left(PROMPTS, torch.device("cpu"))
    last = model(tokens, pos=pos, cache=Cache(model.config), logits="last").logits[:, 0]
    alone = torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in PROMPTS])
    torch.testing.assert_close(last, alone, atol=1e-5, rtol=0)


SAMPLED = {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}


def test_sampling_in_a_batch_is_sampling_alone(model):
    together = generate(model, None, PROMPTS, max_new=15, seed=3, **SAMPLED).run()
    alone = [
        generate(model, None, prompt, max_new=15, seed=3, **SAMPLED).run() for prompt in PROMPTS
    ]
    assert together.tokens == [item.tokens[0] for item in alone]
    assert len({tuple(tokens) for tokens in together.tokens}) == len(PROMPTS)


def test_samples_are_the_prompt_given_again(model):
    forked = generate(model, None, PROMPTS[:2], max_new=12, samples=3, seed=5).run()
    repeated = generate(
        model, None, [ids for ids in PROMPTS[:2] for _ in range(3)], max_new=12, seed=5
    ).run()
    assert forked.tokens == repeated.tokens
    assert len({tuple(tokens) for tokens in forked.tokens}) == 6


def test_each_row_has_luck_of_its_own(rotary):
    model = build_model(rotary.config, seed=7).eval()
    with torch.no_grad():
        # every token is as likely as any other: luck alone decides
        model.embed.token.weight.zero_()
    output = generate(model, None, [*PROMPTS, PROMPTS[0]], max_new=12, samples=2, seed=0).run()
    assert len({tuple(tokens) for tokens in output.tokens}) == len(output.rows)
    assert all(len(set(tokens)) > 3 for tokens in output.tokens)
    assert (
        output.seed == 0
        and generate(model, None, PROMPTS[1], max_new=12, seed=0).run().tokens[0]
        == output.tokens[2]
    )


def test_logits_are_fp32_whatever_the_model_is(rotary):
    session = Session(build_model(rotary.config, seed=7, dtype=torch.bfloat16).eval())
    assert (
        session.prefill(PROMPTS, None, 1).dtype
        == session.decode(torch.tensor([1, 2, 3, 4])).dtype
        == torch.float32
    )


def test_ids_come_in_any_container(rotary):
    expected = greedy(rotary, [PROMPTS[0], PROMPTS[0]], 5).tokens
    for ids in (
        torch.tensor([PROMPTS[0]] * 2),
        np.array([PROMPTS[0]] * 2),
        [tuple(np.array(PROMPTS[0]))] * 2,
    ):
        assert greedy(rotary, ids, 5).tokens == expected
    assert greedy(rotary, np.array(PROMPTS[0], np.uint16), 5).tokens == expected[:1]


def test_the_seed_repeats_and_another_does_not(rotary):
    first, again, second = (
        generate(rotary, None, PROMPTS, max_new=9, seed=seed).run().tokens for seed in (1, 1, 2)
    )
    assert first == again != second
    unseeded = generate(rotary, None, PROMPTS, max_new=9).run()
    assert (
        generate(rotary, None, PROMPTS, max_new=9, seed=unseeded.seed).run().tokens
        == unseeded.tokens
    )
    torch.manual_seed(4)
    tokens = generate(rotary, None, [1], max_new=9).run().tokens
    torch.manual_seed(4)
    assert generate(rotary, None, [1], max_new=9).run().tokens == tokens


def test_rows_that_end_leave_the_others_alone(model):
    """Prompts close to the context end early; the short ones go on to theirs."""
    prompts = [[1 + i % 50 for i in range(size)] for size in (CONTEXT, CONTEXT - 3, 2, 1)]
    output = generate(model, None, prompts, max_new=40, temperature=0, eos=()).run()
    assert [len(tokens) for tokens in output.tokens] == [1, 4, 40, 40]
    assert output.finishes == ["context", "context", "length", "length"]
    assert output.tokens == [
        recomputed(model, ids, len(token))[0]
        for ids, token in zip(prompts, output.tokens, strict=True)
    ]
    drawn = generate(model, None, prompts, max_new=20, seed=2, eos=(), **SAMPLED).run()
    alone = [
        generate(model, None, ids, max_new=20, seed=2, eos=(), **SAMPLED).run().tokens[0]
        for ids in prompts
    ]
    assert drawn.tokens == alone


def test_one_token_costs_one_position(rotary, monkeypatch):
    sizes = []
    forward = type(rotary).forward

    def watched(self, tokens, **kwargs):
        sizes.append(tuple(tokens.shape))
        return forward(self, tokens, **kwargs)

    monkeypatch.setattr(type(rotary), "forward", watched)
    generate(rotary, None, PROMPTS, max_new=4, samples=2, seed=1).run()
    first, *remaining = sizes  # one prefill for all samples; the last token is not read back
    # in pages all rows lie side by side
    assert first == (4, 12) and remaining in ([(8, 1)] * 3, [(1, 8)] * 3)


def test_dropout_sleeps_and_training_goes_on(rotary):
    cfg = dataclasses.replace(
        rotary.config, decoder=dataclasses.replace(rotary.config.decoder, dropout=0.5)
    )
    model = build_model(cfg, seed=7)
    model.load_state_dict(rotary.state_dict())
    model.train()
    output = generate(model, None, PROMPTS[0], max_new=9, temperature=0)
    for _, step in enumerate(output):
        assert model.training and torch.is_grad_enabled()
        assert step.logprob <= 0
    assert output.tokens == greedy(rotary, PROMPTS[0], 9).tokens


# ----------------------------------------------------------------------------------------- ends


def test_eos_ends_a_row(rotary):
    tokens = greedy(rotary, PROMPTS, 20).tokens
    end = tokens[0][5]
    output = generate(rotary, None, PROMPTS, max_new=20, temperature=0, eos=end).run()
    for token, full, finish in zip(output.tokens, tokens, output.finishes, strict=True):
        expected = full[: full.index(end) + 1] if end in full else full
        assert token == expected
        assert finish == ("eos" if end in full else "length")
    tokenizer = Digits()
    tokenizer.eos = end
    actual_output = generate(rotary, tokenizer, PROMPTS[0], max_new=20, temperature=0).run()
    assert actual_output.tokens[0] == output.tokens[0] and actual_output.text == "".join(
        map(tokenizer.push, output.tokens[0][:-1])
    )


def test_steps_tell_everything(rotary):
    output = generate(rotary, None, PROMPTS[:2], max_new=3, samples=2, seed=1)
    assert output.texts == ["", "", "", ""] and output.finishes == [None] * 4
    steps = list(output)
    assert [(step.row, step.index) for step in steps] == [
        (row, index) for index in range(3) for row in range(4)
    ]
    assert [step.finish for step in steps] == [None] * 8 + ["length"] * 4
    for row in output.rows:
        assert row.tokens == [step.token for step in steps if step.row == row.number]
        assert row.logprobs == [step.logprob for step in steps if step.row == row.number]
    assert json.loads(json.dumps(output.to_dict()))["rows"][3]["tokens"] == output.tokens[3]


def test_steps_come_in_the_order_of_rows_whichever_end(rotary):
    prompts = [[1 + i % 50 for i in range(size)] for size in (4, CONTEXT, 3, CONTEXT - 3, 2)]
    steps = list(generate(rotary, None, prompts, max_new=8, seed=1, eos=()))
    assert [(step.index, step.row) for step in steps] == sorted(
        (step.index, step.row) for step in steps
    )


class Digits:
    """A tokenizer with one character per id, whose eos is 0 and bos 1."""

    size, unk = VOCAB, None
    pad: int | None = None
    bos: int | None = 1
    eos: int | None = 0
    letters = "".join(map(chr, range(40, 40 + VOCAB)))

    @property
    def for_source(self) -> Digits:
        return self

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        return [self.bos] * bos + [self.letters.index(letter) for letter in text] + [self.eos] * eos

    def stream(self) -> Digits:
        return self

    def push(self, token: int) -> str:
        return self.letters[token]

    def flush(self) -> str:
        return ""


def test_text_in_text_out(rotary):
    tokenizer = Digits()
    ids = tokenizer.encode("HELLO", bos=True)
    expected = "".join(tokenizer.push(token) for token in greedy(rotary, ids, 12).tokens[0])
    output = generate(rotary, tokenizer, "HELLO", max_new=12, temperature=0, eos=())
    assert "".join(step.text for step in output) == output.text == expected
    assert output.rows[0].prompt == ids
    stop = expected[4:7]
    cut = generate(
        rotary, tokenizer, "HELLO", max_new=12, temperature=0, eos=(), stop=["@@@@", stop]
    )
    assert "".join(step.text for step in cut) == cut.text == expected[: expected.index(stop)]
    assert cut.finishes == ["stop"] and len(cut.tokens[0]) == expected.index(stop) + 3
    last = generate(
        rotary, tokenizer, "HELLO", max_new=len(cut.tokens[0]), temperature=0, eos=(), stop=stop
    ).run()
    assert last.finishes == ["stop"] and last.text == cut.text  # in the very last token
    stored_output = generate(
        rotary, tokenizer, "HELLO", max_new=12, temperature=0, eos=(), stop=expected[-2:] + "@@"
    ).run()
    # what might have begun a stop string is shown
    assert stored_output.text == expected and stored_output.finishes == ["length"]
    tokenizer.bos = tokenizer.eos
    # a border of documents is not a beginning
    assert generate(rotary, tokenizer, "HELLO").rows[0].prompt == ids[1:]
    tokenizer.bos = 1
    many = generate(
        rotary, tokenizer, ["HELLO", None, "ME"], max_new=12, temperature=0, eos=()
    ).run()
    assert many.texts[0] == expected and many.rows[1].prompt == [1]


def test_only_what_the_tokenizer_can_write_is_drawn(rotary):
    tokenizer = Digits()
    tokenizer.size = 20
    output = generate(
        rotary, tokenizer, [1], max_new=30, samples=5, seed=1, repetition_penalty=1.1
    ).run()
    assert max(max(tokens) for tokens in output.tokens) < 20
    assert all(sum(row) < -9 for row in output.logprobs)  # of the model's whole vocabulary
    for step in generate(rotary, tokenizer, [1], max_new=8, temperature=0, likely=3):
        assert step.likely[0] == (step.token, pytest.approx(step.logprob, abs=1e-5))
        assert all(token < 20 for token, _ in step.likely)


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        ([], {}, "empty"),
        ([[3], []], {}, "empty"),
        ("text", {}, "needs a tokenizer"),
        ([VOCAB], {}, f"{VOCAB} is out of range"),
        ([-1], {}, "-1 is out of range"),
        ([1.5, 2], {}, "neither a text nor token ids"),
        (7, {}, "neither a text nor token ids"),
        (b"text", {}, "neither a text nor token ids"),
        ([1] * 49, {}, "has 49 tokens and the model's context is 48"),
        ([1], {"max_new": 0}, "max_new is 0"),
        ([1], {"samples": 0}, "samples is 0"),
        ([1], {"samples": 2, "temperature": 0}, "would be the same"),
        ([1], {"top_p": 1.5}, "top_p is 1.5"),
        ([1], {"temperature": -1}, "temperature is -1"),
        ([1], {"stop": "x"}, "need a tokenizer"),
        ([1], {"stop": ["x", ""]}, "stop string is empty"),
    ],
)
def test_one_clear_sentence(rotary, prompt, settings, words):
    with pytest.raises(UserError, match=words):
        generate(rotary, None, prompt, **settings)


def test_no_prompt_is_the_beginning_and_an_empty_one_is_none(rotary):
    tokenizer = Digits()
    assert generate(rotary, tokenizer, None).rows[0].prompt == [tokenizer.bos]
    for empty in ("", ["HELLO", ""], []):
        with pytest.raises(UserError, match="empty"):
            generate(rotary, tokenizer, empty)
    tokenizer.bos = None
    assert generate(rotary, tokenizer, None).rows[0].prompt == [tokenizer.eos]
    tokenizer.eos = None
    for nothing in (tokenizer, None):
        with pytest.raises(UserError, match="no bos or eos"):
            generate(rotary, nothing, None)


def test_damaged_weights_are_reported(rotary):
    model = build_model(KINDS["rotary"], seed=7)
    with torch.no_grad():
        model.decoder.blocks[0].attn.q.weight[0, 0] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        generate(model, None, [1]).run()


def test_an_encoder_does_not_generate(rotary):
    stack = dataclasses.replace(rotary.config.decoder, causal=False)
    model = build_model(c.Encoder(32, CONTEXT, c.Embed(VOCAB), stack), seed=1)
    with pytest.raises(UserError, match="encoder"):
        generate(model, None, [1])


# ------------------------------------------------------------------------------ encoder-decoder


def test_an_encoder_decoder_answers_its_source():
    attention, init = c.Attention(heads=4), c.Init(std=0.15, embed_std=0.3, residual="plain")
    block = c.Block(attention, c.MLP(48), c.LayerNorm())
    encoder = c.Stack(2, (block,), c.RelativeBias(8, 16), causal=False)
    stack = c.Stack(2, (dataclasses.replace(block, cross=attention),), c.RelativeBias(8, 16))
    model = build_model(
        c.EncoderDecoder(32, CONTEXT, c.Embed(VOCAB), encoder, stack, init=init), seed=3
    ).eval()
    output = generate(model, None, PROMPTS, start=2, max_new=10, temperature=0).run()
    for prompt, tokens in zip(PROMPTS, output.tokens, strict=True):
        row = [2]
        with torch.no_grad():
            for _ in range(10):
                row.append(
                    int(model(torch.tensor([row]), torch.tensor([prompt])).logits[0, -1].argmax())
                )
        assert tokens == row[1:]
    samples = generate(model, None, PROMPTS[:2], start=2, max_new=6, samples=2, seed=1).run()
    alone = [
        generate(model, None, ids, start=2, max_new=6, samples=2, seed=1).run()
        for ids in PROMPTS[:2]
    ]
    assert samples.tokens == alone[0].tokens + alone[1].tokens
    with pytest.raises(UserError, match="start=ID"):
        generate(model, None, PROMPTS)
    tokenizer = Digits()
    tokenizer.pad = 5
    row = generate(model, tokenizer, "HELLO").rows[0]
    # a source is closed, not opened
    assert row.prompt == tokenizer.encode("HELLO", eos=True) and row.start == [1]
    tokenizer.bos = None
    assert generate(model, tokenizer, "HELLO").rows[0].start == [5]


# ----------------------------------------------------------------- against another implementation


def saved_llama(folder: Path) -> transformers.PreTrainedModel:
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }
    cfg = transformers.LlamaConfig(
        **sizes,
        vocab_size=VOCAB,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    return _saved(transformers.LlamaForCausalLM, cfg, folder)


def saved_gpt2(folder: Path) -> transformers.PreTrainedModel:
    cfg = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3
    )
    return _saved(transformers.GPT2LMHeadModel, cfg, folder)


def _saved(
    kind: type, cfg: transformers.PreTrainedConfig, folder: Path
) -> transformers.PreTrainedModel:
    torch.manual_seed(2)
    model = kind(cfg).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("save", [saved_llama, saved_gpt2])
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_is_transformers(save, penalty, tmp_path):
    reference = save(tmp_path)
    reference.generation_config.eos_token_id = None  # both go on to the end
    model, _ = glassformer.load(tmp_path)
    output = generate(
        model, None, PROMPTS, max_new=25, temperature=0, repetition_penalty=penalty
    ).run()
    for ids, tokens, logprobs in zip(PROMPTS, output.tokens, output.logprobs, strict=True):
        query = torch.tensor([ids])
        expected = reference.generate(
            query,
            attention_mask=torch.ones_like(query),
            generation_config=transformers.GenerationConfig(
                max_new_tokens=25,
                do_sample=False,
                repetition_penalty=penalty,
                return_dict_in_generate=True,
            ),
        ).sequences[0, len(ids) :]
        assert tokens == expected.tolist()
        with torch.no_grad():
            individual = (
                reference(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            )
        result = individual.gather(-1, expected[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), result, atol=1e-5, rtol=0)


# ------------------------------------------------------------------------- a real trained model

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high"
)


def test_a_real_model_tells_its_story(shared_data):
    model, tokenizer = glassformer.load(shared_data / "stories260K")
    assert tokenizer is not None
    output = generate(model, tokenizer, None, max_new=60, temperature=0)
    assert "".join(step.text for step in output) == output.text == STORY
    half, remaining = STORY[: STORY.index(" She wanted")], STORY[STORY.index(" She wanted") :]
    batch = generate(
        model, tokenizer, [half, None, "Lily"], max_new=60, temperature=0, stop="too high"
    ).run()
    assert batch.texts[0] == remaining.removesuffix("too high") and batch.finishes[0] == "stop"
    assert batch.texts[1] == STORY.removesuffix("too high")
    alone = generate(model, tokenizer, "Lily", max_new=60, temperature=0, stop="too high").run()
    assert batch.tokens[2] == alone.tokens[0]
    text = tokenizer.decode(alone.rows[0].prompt + alone.tokens[0])
    assert text.startswith("Lily" + alone.text)
