"""Beam search finds what an exhaustive search and transformers find."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import transformers

import tiny
from glassformer import config as c
from glassformer import load
from glassformer.core.generation import beam, generate, session
from glassformer.core.generation.beam import _likeliest
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.tasks.translation import translate as search
from mistakes import mistake
from seeding import generator_from


def model(name):
    return tiny.model(name, 3)


def test_wide_beams_find_the_best_of_all_continuations():
    shape = c.Decoder(16, 16, c.Embed(6), tiny.gpt2().decoder, c.Head(), tiny.WIDE)
    model = tiny.model(shape)
    prompt = [1, 2]
    length = 3
    everything = list(itertools.product(range(6), repeat=length))
    with torch.no_grad():  # a plain pass without a cache
        rows = torch.tensor([[*prompt, *tokens] for tokens in everything])
        logprobs = model(rows).logits.log_softmax(-1)[:, 1:-1]
    sums = logprobs.gather(-1, rows[:, 2:, None])[..., 0].sum(-1)
    hypotheses = beam(model, None, prompt, beams=36, best=4, max_new=length, length_penalty=0.0)[0]
    best = sums.topk(4)
    assert [tuple(h.tokens) for h in hypotheses] == [everything[at] for at in best.indices]
    assert [h.score for h in hypotheses] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert all(h.finish == "length" for h in hypotheses)
    pairs = beam(model, None, prompt, beams=36, best=36, max_new=2)[0]
    # none twice
    assert {tuple(h.tokens) for h in pairs} == set(itertools.product(range(6), repeat=2))
    singles = beam(model, None, prompt, beams=8, best=8, max_new=1)[0]
    assert sorted(h.tokens for h in singles) == [[token] for token in range(6)]
    # where every token ends, nothing is left to grow though fewer have ended than there are beams
    ends = beam(model, None, prompt, beams=8, best=8, max_new=5, eos=range(6))[0]
    assert sorted(h.tokens for h in ends) == [[token] for token in range(6)]
    assert all(h.finish == "eos" for h in ends)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5", "vaswani", "glass"])
def test_one_beam_is_greedy(name):
    new_model = model(name)
    prompt = [[5, 7, 9], [4, 8]]
    greedy = generate(new_model, None, prompt, temperature=0, max_new=8, eos=(), start=0).run()
    result = beam(new_model, None, prompt, beams=1, max_new=8, eos=(), start=0)
    assert [hypotheses[0].tokens for hypotheses in result] == greedy.tokens
    for hypotheses, logprobs in zip(result, greedy.logprobs, strict=True):
        assert hypotheses[0].logprobs == pytest.approx(logprobs, abs=1e-5)


@pytest.mark.parametrize(
    "name", ["llama", "starcoder2", "t5", "vaswani", "glass", "cho", "bahdanau"]
)
def test_a_prompt_finds_the_same_in_a_batch_as_alone(name):
    new_model = model(name)
    prompts = [[5, 7, 9, 11, 3], [4, 8], [6]]
    settings = {"beams": 3, "best": 3, "max_new": 10, "eos": (2, 9, 17), "start": 0}
    for prompt, result in zip(prompts, beam(new_model, None, prompts, **settings), strict=True):
        alone = beam(new_model, None, [prompt], **settings)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in result]
        assert [h.score for h in alone] == pytest.approx([h.score for h in result], abs=1e-5)
        assert [h.score for h in result] == sorted(
            (sum(h.logprobs) / len(h.tokens) for h in result), reverse=True
        )


@pytest.mark.parametrize("name", ["gpt2", "starcoder2", "gemma2", "glass"])
def test_a_long_prompt_beside_it_leaves_a_short_one_the_whole_context(name):
    new_model = model(name)
    end = new_model.config.context - 3
    prompts = [[4, 8], [*range(1, 7)] * 10 + [3] * (end - 60), [6, 5, 4] * 7]
    settings = {"beams": 3, "best": 3, "max_new": 20, "eos": (), "start": 0}
    for prompt, result in zip(prompts, beam(new_model, None, prompts, **settings), strict=True):
        alone = beam(new_model, None, [prompt], **settings)[0]
        assert [h.tokens for h in alone] == [h.tokens for h in result]
        assert len(alone[0].tokens) == min(20, end + 4 - len(prompt))


def test_equal_to_transformers(tmp_path):
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        vocab_size=50,
        decoder_start_token_id=0,
        dropout_rate=0.0,
    )
    reference = transformers.T5ForConditionalGeneration(config).eval()
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    reference.save_pretrained(tmp_path)
    model, _ = load(tmp_path)
    prompts = [[5, 7, 9, 11, 1], [4, 8, 22, 30, 1]]
    group = list(range(1, 50, 4))  # among so many endings beams end at every step
    cases = [(0.0, None, [1]), (1.0, None, [1]), (2.0, None, [1]), (0.0, 33, [1])]
    cases += [(0.0, None, group), (1.0, None, group), (1.0, 32, group), (2.0, 32, group)]
    for penalty, forced, bounds in cases:  # forced: a language's tag
        output = reference.generate(
            torch.tensor(prompts),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=12,
            length_penalty=penalty,
            forced_bos_token_id=forced,
            eos_token_id=bounds,
            early_stopping=True,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        start = [0] if forced is None else [0, forced]
        options = {"beams": 4, "best": 4, "max_new": 13 - len(start), "length_penalty": penalty}
        hypotheses = beam(model, None, prompts, eos=bounds, start=start, **options)
        flat = [h for group in hypotheses for h in group]
        assert output.sequences_scores.tolist() == pytest.approx([h.score for h in flat], abs=1e-4)
        for row, hypothesis in zip(output.sequences.tolist(), flat, strict=True):
            tokens = start + hypothesis.tokens
            assert row[: len(tokens)] == tokens


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"beams": 0}, "beams is 0"),
        ({"beams": 10**9}, "beams is 1000000000; give 1 to 1,000,000"),
        ({"best": 5}, "best is 5"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": 1e308}, "length_penalty is 1e.308; give a number from -10"),
        ({"max_new": 0}, "max_new is 0"),
    ],
)
def test_settings_that_mean_nothing(settings, message):
    with mistake(message):
        beam(model("gpt2"), None, [1], **settings)


@pytest.mark.parametrize("name", ["llama", "t5", "glass", "gru", "bahdanau"])
@pytest.mark.parametrize("variant", [beam, generate])
def test_more_rows_than_memory_holds_are_refused_before_they_are_made(variant, name, monkeypatch):
    monkeypatch.setattr(session, "available_memory", lambda device: 1 << 22)
    monkeypatch.setattr(session.Session, "select", None)
    many = {"beams": 50_000} if variant is beam else {"samples": 50_000}
    with mistake(
        r"50,000 continuations of each prompt take .*iB and 4.00 MiB are free; take fewer"
    ):
        [*variant(model(name), None, [1, 2], start=0, **many)]


def test_rows_are_made_where_nobody_knows_the_free_memory(monkeypatch):
    monkeypatch.setattr(session, "available_memory", lambda device: None)
    assert (
        len(generate(model("gpt2"), None, [1, 2], samples=2, max_new=2, seed=0).run().tokens) == 2
    )


@pytest.mark.parametrize("variant", [beam, generate])
@pytest.mark.parametrize(
    "name, options, message",
    [
        ("t5", {"start": []}, "at least one"),
        ("t5", {"start": [0, 50]}, "50 is out of range"),
        ("t5", {"start": -1}, "-1 is out of range"),
        *(("t5", {"start": bad}, "give a token's id") for bad in ("de", [0.5], [True], [1] * 65)),
        ("bert", {}, "encoder"),
    ],
)
def test_a_beginning_that_is_none(variant, name, options, message):
    with mistake(message):
        variant(model(name), None, [1], max_new=4, **options)


def test_several_tokens_begin_a_target_on_the_greedy_path():
    new_model = model("t5")
    options = {"max_new": 6, "eos": ()}
    output = generate(new_model, None, [[5, 7]], start=[0, 33, 4], temperature=0, **options).run()
    row = [0, 33, 4]
    with torch.no_grad():
        for _ in range(6):
            logits = new_model(torch.tensor([row]), torch.tensor([[5, 7]])).logits
            row.append(int(logits[0, -1].argmax()))
    (best,) = beam(new_model, None, [[5, 7]], beams=1, start=(0, 33, 4), **options)[0]
    assert output.tokens[0] == row[3:] == best.tokens


def pooled(head):
    return replace(tiny.DECODERS["llama"], head=head, pool=c.Pool("last", normalize=True))


def test_a_decoder_with_a_pool_generates_and_one_without_a_head_says_that_it_cannot():
    with_pool, alone, headless = (
        tiny.model(cfg)
        for cfg in (pooled(c.Head()), replace(pooled(c.Head()), pool=None), pooled(None))
    )
    options = {"max_new": 8, "eos": ()}
    outputs = [
        generate(item, None, [[5, 7, 9]], temperature=0, **options).run().tokens
        for item in (with_pool, alone)
    ]
    assert outputs[0] == outputs[1]
    first, second = (beam(item, None, [[5, 7, 9]], **options) for item in (with_pool, alone))
    assert first == second
    output = headless(torch.tensor([[5, 7, 9]]))
    assert output.pooled.shape == (1, tiny.DIM)
    assert output.logits.numel() == 0
    for variant in (generate, beam):
        with mistake("no head over tokens"):
            variant(headless, None, [1], max_new=2)


def test_a_prompt_is_done_when_as_many_have_ended_as_there_are_beams():
    # a longer one would be better
    new_model = model("gpt2")
    settings = {"beams": 1, "max_new": 12, "length_penalty": 9.0}
    tokens = beam(new_model, None, [[5, 7, 9]], eos=(), **settings)[0][0].tokens
    hypotheses = beam(new_model, None, [[5, 7, 9]], eos=tokens[3], **settings)[0][0]
    assert hypotheses.tokens == tokens[: tokens.index(tokens[3]) + 1]
    assert hypotheses.finish == "eos"


def test_a_beam_ends_where_the_context_does():
    prompt = [1 + place % 40 for place in range(tiny.CONTEXT - 2)]
    for beams in (1, 3):
        hypotheses = beam(model("llama"), None, [prompt], beams=beams, eos=())[0][0]
        # the last one is never read back
        assert len(hypotheses.tokens) == 3
        assert hypotheses.finish == "length"


def test_many_sources_are_answered_in_their_order():
    tokenizer = train_tokenizer("char", ["abcdefgh"], None, ("<pad>", "<s>", "</s>", "<unk>"))
    new_model = model("vaswani")
    sources = ["abcdefgh", "a", "hgfed", "cab", "bb"]
    options = {"beams": 2, "max_new": 6}
    results = search(new_model, tokenizer, sources, batch=2, **options)
    for source, hypotheses in zip(sources, results, strict=True):
        alone = search(new_model, tokenizer, [source], **options)[0]
        assert [h.tokens for h in hypotheses] == [h.tokens for h in alone]
    assert len({tuple(hypotheses[0].tokens) for hypotheses in results}) > 1


@pytest.mark.parametrize("name", ["vaswani", "gpt2"])
def test_a_source_too_long_is_refused_or_cut(name):
    tokenizer = train_tokenizer("char", ["abcdefgh"], None, ("<pad>", "<s>", "</s>", "<unk>"))
    model = tiny.model(replace(tiny.ALL[name], context=12), seed=3)

    def best(text, **options):
        return search(model, tokenizer, [text], beams=2, max_new=2, **options)[0][0]

    # eos closes a source; a decoder reads bos, source and what starts a target
    room = 11 if name == "vaswani" else 10
    long = "abcdefghabcdefgh"
    with mistake("context is 12"):
        best(long)
    for cut, saved in (("end", long[:room]), ("start", long[-room:])):
        result = best(long, cut=cut)
        right = best(saved, cut=cut)
        assert result.tokens == right.tokens
        assert result.score == pytest.approx(right.score, abs=1e-6)
    with mistake("cut is"):
        best(long, cut="middle")


@pytest.mark.parametrize("beams", [2, 3])
def test_only_endings_among_the_best_count(beams):
    """Candidates behind the first ``beams`` of twice as many only take the place of ended ones."""
    new_model = model("llama")
    prompt = [5, 7, 9]
    with torch.no_grad():
        logits = new_model(torch.tensor([prompt])).logits[0, -1]
    likeliest = logits.topk(2 * beams).indices.tolist()
    # one ends among the best, which leaves room to look behind them
    bounds = (likeliest[0], likeliest[beams])
    # short ones are before long ones
    options = {"beams": beams, "best": beams, "max_new": 4, "length_penalty": 0.0}
    tokens = [h.tokens for h in beam(new_model, None, [prompt], eos=bounds, **options)[0]]
    assert [likeliest[0]] in tokens
    assert [likeliest[beams]] not in tokens


def test_the_likeliest_of_a_large_vocabulary_are_all_found():
    """With what is left over behind the last whole block, and equals across blocks."""
    logprobs = torch.randn(5, 128 * 40 + 77, generator=generator_from(2))
    logprobs[0, -1], logprobs[1, 300:420], logprobs[2, 128 * 7 : 128 * 7 + 9] = (
        9.0,
        8.0,
        torch.arange(9.0) + 5,
    )
    best, places = _likeliest(logprobs, 8)
    assert torch.equal(best, logprobs.topk(8)[0])
    assert torch.equal(logprobs.gather(1, places), best)
    assert all(len(set(row)) == 8 for row in places.tolist())
