"""Generation obeys the laws: cached = uncached, padded = alone, batch = one by one, fork = apart;
it ends well."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch.testing import assert_close

import glassformer
import tiny
from folders import read_json
from glassformer import config as c
from glassformer.core import registry
from glassformer.core.generation import generate
from glassformer.core.generation.session import Session
from glassformer.core.nn import build_model
from mistakes import mistake

VOCAB = 61
CONTEXT = 48


def decoder(
    position,
    mask_rule=c.Full(),
    think=c.GatedMLP(48),
    **attention,
):
    """Two small blocks; with a window, the second block sees everything."""
    blocks = tuple(
        c.Block(c.Attention(heads=4, mask=reach, **attention), think, c.RMSNorm())
        for reach in dict.fromkeys((mask_rule, c.Full()))
    )
    stack = c.Stack(2, blocks, position, last_norm=c.RMSNorm())
    return c.Decoder(
        32, CONTEXT, c.Embed(VOCAB), stack, init=c.Init(std=0.15, embed_std=0.3, residual="plain")
    )


KINDS = {
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
def cfg(request):
    return KINDS[request.param]


@pytest.fixture
def model(cfg):
    return tiny.model(cfg, seed=7)


@pytest.fixture(scope="module")
def rotary():
    return tiny.model(KINDS["rotary"], seed=7)


@torch.no_grad()
def recomputed(model, ids, count):
    """Greedy tokens without any cache, and the logits each was taken from."""
    row = list(ids)
    calls = []
    for _ in range(count):
        calls.append(model(torch.tensor([row])).logits[0, -1])
        row.append(int(calls[-1].argmax()))
    return row[len(ids) :], torch.stack(calls)


def run(model, prompt, count=20, tokenizer=None, **settings):
    return generate(model, tokenizer, prompt, max_new=count, **settings).run()


def greedy(model, prompt, count=20, tokenizer=None, **settings):
    return run(model, prompt, count, tokenizer, temperature=0, **settings)


@torch.no_grad()
def test_a_batch_with_a_cache_is_each_without(model):
    """Other layouts and chunks: nn/test_cache.py and test_laws.py."""
    together = greedy(model, PROMPTS)
    for number, prompt in enumerate(PROMPTS):
        tokens, logits = recomputed(model, prompt, 20)
        expected = logits.log_softmax(-1).amax(-1)
        for result, row in ((greedy(model, prompt), 0), (together, number)):
            assert result.tokens[row] == tokens
            assert_close(torch.tensor(result.logprobs[row]), expected, atol=1e-5, rtol=0)


# ----------------------------------------------------------------------------------------- laws


SAMPLED = {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1}


def test_sampling_in_a_batch_is_sampling_alone(model):
    together = run(model, PROMPTS, 15, seed=3, **SAMPLED).tokens
    assert together == [run(model, prompt, 15, seed=3, **SAMPLED).tokens[0] for prompt in PROMPTS]
    assert len(set(map(tuple, together))) == len(PROMPTS)


def test_samples_are_the_prompt_given_again(model):
    forked = run(model, PROMPTS[:2], 12, samples=3, seed=5).tokens
    assert forked == run(model, [ids for ids in PROMPTS[:2] for _ in range(3)], 12, seed=5).tokens
    assert len(set(map(tuple, forked))) == 6


def test_each_row_has_luck_of_its_own(rotary):
    model = tiny.model(rotary.config, seed=7)
    with torch.no_grad():
        # every token is as likely as any other: luck alone decides
        model.embed.token.weight.zero_()
    output = run(model, [*PROMPTS, PROMPTS[0]], 12, samples=2, seed=0)
    assert len(set(map(tuple, output.tokens))) == len(output.rows)
    assert all(len(set(tokens)) > 3 for tokens in output.tokens)
    assert output.seed == 0
    assert run(model, PROMPTS[1], 12, seed=0).tokens[0] == output.tokens[2]


def test_logits_are_fp32_whatever_the_model_is(rotary):
    session = Session(build_model(rotary.config, seed=7, dtype=torch.bfloat16).eval())
    for logits in (session.prefill(PROMPTS, None, 1), session.decode(torch.tensor([1, 2, 3, 4]))):
        assert logits.dtype == torch.float32


@pytest.mark.parametrize(
    "ids",
    [
        torch.tensor([PROMPTS[0]]),
        np.array([PROMPTS[0]]),
        [tuple(np.array(PROMPTS[0]))],
        np.array(PROMPTS[0], np.uint16),
    ],
)
def test_ids_come_in_any_container(rotary, ids):
    assert greedy(rotary, ids, 5).tokens == greedy(rotary, [PROMPTS[0]], 5).tokens


def test_the_seed_repeats_and_another_does_not(rotary):
    first, again, second = (run(rotary, PROMPTS, 9, seed=seed).tokens for seed in (1, 1, 2))
    assert first == again != second
    unseeded = run(rotary, PROMPTS, 9)
    assert run(rotary, PROMPTS, 9, seed=unseeded.seed).tokens == unseeded.tokens
    drawn = []
    for _ in range(2):
        torch.manual_seed(4)
        drawn.append(run(rotary, [1], 9).tokens)
    assert drawn[0] == drawn[1]


def test_rows_that_end_leave_the_others_alone(model):
    """Prompts close to the context end early; the short ones go on to theirs."""
    prompts = [[1 + i % 50 for i in range(size)] for size in (CONTEXT, CONTEXT - 3, 2, 1)]
    output = greedy(model, prompts, 40, eos=())
    assert output.finishes == ["context", "context", "length", "length"]
    for prompt, tokens, count in zip(prompts, output.tokens, (1, 4, 40, 40), strict=True):
        assert tokens == recomputed(model, prompt, count)[0]
    options = {"seed": 2, "eos": (), **SAMPLED}
    alone = [run(model, ids, 20, **options).tokens[0] for ids in prompts]
    assert run(model, prompts, 20, **options).tokens == alone


def test_one_token_costs_one_position(rotary, monkeypatch):
    sizes = []
    forward = type(rotary).forward

    def watched(self, tokens, **kwargs):
        sizes.append(tuple(tokens.shape))
        return forward(self, tokens, **kwargs)

    monkeypatch.setattr(type(rotary), "forward", watched)
    run(rotary, PROMPTS, 4, samples=2, seed=1)
    first, *decode_sizes = sizes  # one prefill for all samples; the last token is not read back
    # in pages all rows lie side by side
    assert first == (4, 12)
    assert decode_sizes in ([(8, 1)] * 3, [(1, 8)] * 3)


def test_dropout_sleeps_and_training_goes_on(rotary):
    model = build_model(tiny.with_dropout(rotary.config, 0.5), seed=7).train()
    output = generate(model, None, PROMPTS[0], max_new=9, temperature=0)
    for step in output:
        assert model.training
        assert torch.is_grad_enabled()
        assert step.logprob <= 0
    assert output.tokens == greedy(rotary, PROMPTS[0], 9).tokens


def test_only_many_tokens_outside_a_training_are_prepared_for(rotary, monkeypatch):
    """A training's next step would make copies of the weights worthless."""
    prepared = []
    room = SimpleNamespace(prepare=lambda session, steps: prepared.append(session.model.training))
    model = build_model(rotary.config, seed=7)
    monkeypatch.setattr(registry, "load", lambda topic: [room])
    for training, count in itertools.product((True, False), (31, 32)):
        Session(model.train(training)).prepare(count)
    assert prepared == [False]


# ----------------------------------------------------------------------------------------- ends


def test_eos_ends_a_row(rotary):
    tokens = greedy(rotary, PROMPTS).tokens
    end = tokens[0][5]
    output = greedy(rotary, PROMPTS, eos=end)
    for token, full, finish in zip(output.tokens, tokens, output.finishes, strict=True):
        assert token == (full[: full.index(end) + 1] if end in full else full)
        assert finish == ("eos" if end in full else "length")
    tokenizer = Digits()
    tokenizer.eos = end
    actual = greedy(rotary, PROMPTS[0], tokenizer=tokenizer)
    assert actual.tokens[0] == output.tokens[0]
    assert actual.text == "".join(map(tokenizer.push, output.tokens[0][:-1]))


def test_steps_tell_everything(rotary):
    output = generate(rotary, None, PROMPTS[:2], max_new=3, samples=2, seed=1)
    assert output.texts == [""] * 4
    assert output.finishes == [None] * 4
    steps = list(output)
    assert [(step.index, step.row) for step in steps] == list(itertools.product(range(3), range(4)))
    assert [step.finish for step in steps] == [None] * 8 + ["length"] * 4
    for row in output.rows:
        steps_of_row = [step for step in steps if step.row == row.number]
        assert row.tokens == [step.token for step in steps_of_row]
        assert row.logprobs == [step.logprob for step in steps_of_row]
    assert json.loads(json.dumps(output.to_dict()))["rows"][3]["tokens"] == output.tokens[3]


def test_steps_come_in_the_order_of_rows_whichever_end(rotary):
    prompts = [[1 + i % 50 for i in range(size)] for size in (4, CONTEXT, 3, CONTEXT - 3, 2)]
    steps = generate(rotary, None, prompts, max_new=8, seed=1, eos=())
    places = [(step.index, step.row) for step in steps]
    assert places == sorted(places)


class Digits:
    """A tokenizer with one character per id, whose eos is 0 and bos 1."""

    size = VOCAB
    unk = None
    frame: tuple[list[int], list[int]] = ([], [])
    pad: int | None = None
    bos: int | None = 1
    eos: int | None = 0
    letters = "".join(map(chr, range(40, 40 + VOCAB)))

    @property
    def end_ids(self):
        return frozenset(() if self.eos is None else (self.eos,))

    @property
    def for_source(self):
        return self

    def encode(self, text, *, bos=False, eos=False):
        return [self.bos] * bos + [self.letters.index(letter) for letter in text] + [self.eos] * eos

    def stream(self):
        return self

    def push(self, token):
        return self.letters[token]

    def flush(self):
        return ""


def test_text_in_text_out(rotary):
    def text(count=12, prompt="HELLO", **options):
        return greedy(rotary, prompt, count, tokenizer, eos=(), **options)

    tokenizer = Digits()
    ids = tokenizer.encode("HELLO", bos=True)
    expected = "".join(map(tokenizer.push, greedy(rotary, ids, 12).tokens[0]))
    assert text().text == expected
    assert text().rows[0].prompt == ids
    steps = generate(rotary, tokenizer, "HELLO", max_new=12, temperature=0, eos=())
    assert "".join(step.text for step in steps) == expected
    stop = expected[4:7]
    cut = text(stop=["@@@@", stop])
    assert cut.text == expected[: expected.index(stop)]
    assert cut.finishes == ["stop"]
    assert len(cut.tokens[0]) == expected.index(stop) + 3
    last = text(len(cut.tokens[0]), stop=stop)  # in the very last token
    assert last.finishes == ["stop"]
    assert last.text == cut.text
    # what might have begun a stop string is shown
    result = text(stop=expected[-2:] + "@@")
    assert result.text == expected
    assert result.finishes == ["length"]
    many = text(prompt=["HELLO", None, "ME"])
    assert many.texts[0] == expected
    assert many.rows[1].prompt == [1]
    tokenizer.bos = tokenizer.eos
    # a border of documents is not a beginning
    assert generate(rotary, tokenizer, "HELLO").rows[0].prompt == ids[1:]


def test_only_what_the_tokenizer_can_write_is_drawn(rotary):
    tokenizer = Digits()
    tokenizer.size = 20
    output = run(rotary, [1], 30, tokenizer, samples=5, seed=1, repetition_penalty=1.1)
    assert max(max(tokens) for tokens in output.tokens) < 20
    assert all(sum(row) < -9 for row in output.logprobs)  # of the model's whole vocabulary
    for step in generate(rotary, tokenizer, [1], max_new=8, temperature=0, likely=3):
        assert step.likely[0] == (step.token, pytest.approx(step.logprob, abs=1e-5))
        assert all(token < 20 for token, _ in step.likely)


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "prompt, settings, words",
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
    with mistake(words):
        generate(rotary, None, prompt, **settings)


def test_no_prompt_is_the_beginning_and_an_empty_one_is_none(rotary):
    tokenizer = Digits()
    assert generate(rotary, tokenizer, None).rows[0].prompt == [tokenizer.bos]
    for empty in ("", ["HELLO", ""], []):
        with mistake("empty"):
            generate(rotary, tokenizer, empty)
    tokenizer.bos = None
    assert generate(rotary, tokenizer, None).rows[0].prompt == [tokenizer.eos]
    tokenizer.eos = None
    for nothing in (tokenizer, None):
        with mistake("no bos or eos"):
            generate(rotary, nothing, None)


# ------------------------------------------------------------------------------ encoder-decoder


def test_an_encoder_decoder_answers_its_source():
    attention = c.Attention(heads=4)
    init = c.Init(std=0.15, embed_std=0.3, residual="plain")
    block = c.Block(attention, c.MLP(48), c.LayerNorm())
    encoder = c.Stack(2, (block,), c.RelativeBias(8, 16), causal=False)
    stack = c.Stack(2, (replace(block, cross=attention),), c.RelativeBias(8, 16))
    shape = c.EncoderDecoder(32, CONTEXT, c.Embed(VOCAB), encoder, stack, init=init)
    model = tiny.model(shape, seed=3)
    for prompt, tokens in zip(PROMPTS, greedy(model, PROMPTS, 10, start=2).tokens, strict=True):
        row = [2]
        with torch.no_grad():
            for _ in range(10):
                logits = model(torch.tensor([row]), torch.tensor([prompt])).logits
                row.append(int(logits[0, -1].argmax()))
        assert tokens == row[1:]
    samples, *alone = (
        run(model, prompts, 6, start=2, samples=2, seed=1).tokens
        for prompts in (PROMPTS[:2], *PROMPTS[:2])
    )
    assert samples == alone[0] + alone[1]
    with mistake("start=ID"):
        generate(model, None, PROMPTS)
    tokenizer = Digits()
    tokenizer.pad = 5
    row = generate(model, tokenizer, "HELLO").rows[0]
    # a source is closed, not opened
    assert row.prompt == tokenizer.encode("HELLO", eos=True)
    assert row.start == [1]
    tokenizer.bos = None
    assert generate(model, tokenizer, "HELLO").rows[0].start == [5]


SIZES = {"vocab_size": VOCAB, "initializer_range": 0.3}


REFERENCES = {
    transformers.LlamaForCausalLM: transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        max_position_embeddings=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        **SIZES,
    ),
    transformers.GPT2LMHeadModel: transformers.GPT2Config(
        n_positions=64, n_embd=32, n_layer=2, n_head=4, **SIZES
    ),
}


# ----------------------------------------------------------------- against another implementation


@pytest.mark.parametrize("kind", REFERENCES)
@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_greedy_is_transformers(kind, penalty, tmp_path):
    torch.manual_seed(2)
    reference = kind(REFERENCES[kind]).eval()
    reference.save_pretrained(tmp_path)
    reference.generation_config.eos_token_id = None  # both go on to the end
    model, _ = glassformer.load(tmp_path)
    settings = transformers.GenerationConfig(
        max_new_tokens=25, do_sample=False, repetition_penalty=penalty
    )
    output = greedy(model, PROMPTS, 25, repetition_penalty=penalty)
    for ids, tokens, logprobs in zip(PROMPTS, output.tokens, output.logprobs, strict=True):
        query = torch.tensor([ids])
        full = reference.generate(
            query, attention_mask=torch.ones_like(query), generation_config=settings
        )
        assert ids + tokens == full[0].tolist()
        with torch.no_grad():
            logits = reference(full).logits[0, len(ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, full[0, len(ids) :, None])[:, 0]
        assert_close(torch.tensor(logprobs), expected, atol=1e-5, rtol=0)


def test_a_folder_says_what_ends_a_text_as_in_transformers(tmp_path):
    """The ids of generation_config.json, else of config.json, else the tokenizer's; they stay when
    the model is saved."""
    torch.manual_seed(2)
    kind = transformers.LlamaForCausalLM
    reference = kind(REFERENCES[kind]).eval()
    reference.save_pretrained(tmp_path)
    drawn = greedy(glassformer.load(tmp_path)[0], PROMPTS, 25).tokens
    tokenizer = glassformer.tokenizer.train("char", ["".join(map(chr, range(97, 97 + VOCAB - 1)))])
    for stated, beside in (
        ([drawn[0][4], drawn[3][7]], drawn[0][1]),
        (drawn[1][5], None),
        (None, [drawn[0][3], drawn[2][6]]),
    ):
        reference.config.eos_token_id = beside
        reference.generation_config = transformers.GenerationConfig(eos_token_id=stated)
        reference.save_pretrained(tmp_path)
        if stated is None:
            (tmp_path / "generation_config.json").unlink()
        tokenizer.save(tmp_path)
        again = kind.from_pretrained(tmp_path)
        places = [tmp_path]
        for layout in ("hf", "glassformer"):
            model, opened = glassformer.load(tmp_path)
            glassformer.save(model, tmp_path / layout, opened, layout)
            places.append(tmp_path / layout)
        for place in places:
            model, opened = glassformer.load(place)
            for ids in PROMPTS:
                query = torch.tensor([ids])
                full = again.generate(
                    query,
                    attention_mask=torch.ones_like(query),
                    max_new_tokens=25,
                    do_sample=False,
                    pad_token_id=0,
                )
                assert ids + greedy(model, ids, 25, tokenizer=opened).tokens[0] == full[0].tolist()
        assert kind.from_pretrained(tmp_path / "hf").generation_config.eos_token_id == (
            stated or beside
        )


def test_ids_that_end_a_text_stay_beside_what_generation_config_says(tmp_path):
    tokenizer = glassformer.tokenizer.train("byte")
    model = build_model(KINDS["rotary"])
    page = tmp_path / "generation_config.json"
    page.write_text('{"eos_token_id": [3, 4], "temperature": 0.6}')
    glassformer.save(model, tmp_path, tokenizer)
    assert read_json(page) == {"eos_token_id": tokenizer.eos, "temperature": 0.6}
    for wrong in ('"a"', "[1, null]", "true", "{}"):
        page.write_text(f'{{"eos_token_id": {wrong}}}')
        with mistake("generation_config.json is not an id nor a list"):
            glassformer.load(tmp_path)


# ------------------------------------------------------------------------- a real trained model

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
    "One day, she saw a big, red ball. She wanted to play with it, but it was too high"
)


def test_a_real_model_tells_its_story(shared_data):
    model, tokenizer = glassformer.load(shared_data / "stories260K")
    output = generate(model, tokenizer, None, max_new=60, temperature=0)
    assert "".join(step.text for step in output) == output.text == STORY
    at = STORY.index(" She wanted")
    batch = greedy(model, [STORY[:at], None, "Lily"], 60, tokenizer, stop="too high")
    assert batch.texts[0] == STORY[at:].removesuffix("too high")
    assert batch.finishes[0] == "stop"
    assert batch.texts[1] == STORY.removesuffix("too high")
    alone = greedy(model, "Lily", 60, tokenizer, stop="too high")
    assert batch.tokens[2] == alone.tokens[0]
    assert tokenizer.decode(alone.rows[0].prompt + alone.tokens[0]).startswith("Lily" + alone.text)
