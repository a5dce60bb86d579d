"""Beam search finds what an exhaustive search and transformers find."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import UserError
from glassformer import config as c
from glassformer.core.generation import beam, generate
from glassformer.core.generation.beam import _likeliest
from glassformer.core.nn import EncoderDecoder, build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.tasks.translation import search


def model(name: str) -> object:
    model = build_model(tiny.ALL[name], seed=3)
    return model.eval()


def total(result: object, prompt: list[int], tokens: tuple[int, ...]) -> float:
    """The summed log-probability of tokens after the prompt, by a plain pass without a cache."""
    rows = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = result(rows).logits.log_softmax(-1)[0]  # type: ignore[operator]
    return sum(float(logits[len(prompt) - 1 + i, t]) for i, t in enumerate(tokens))


def test_wide_beams_find_the_best_of_all_continuations():
    model = build_model(
        c.Decoder(16, 16, c.Embed(6), tiny.gpt2().decoder, c.Head(), tiny.WIDE), seed=1
    ).eval()
    prompt, length = [1, 2], 3
    everything = {
        tokens: total(model, prompt, tokens)
        for tokens in itertools.product(range(6), repeat=length)
    }
    ranked = sorted(everything, key=lambda tokens: -everything[tokens])[:4]
    hypotheses = beam(model, None, prompt, beams=36, best=4, max_new=length, length_penalty=0.0)[0]
    assert [tuple(h.tokens) for h in hypotheses] == ranked
    for hypothesis in hypotheses:
        assert hypothesis.score == pytest.approx(everything[tuple(hypothesis.tokens)], abs=1e-4)
        assert hypothesis.finish == "length"
    pairs = beam(model, None, prompt, beams=36, best=36, max_new=2)[0]
    # none twice
    assert {tuple(h.tokens) for h in pairs} == set(itertools.product(range(6), repeat=2))


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5", "vaswani", "glass"])
def test_one_beam_is_greedy(name):
    new_model = model(name)
    prompt = [[5, 7, 9], [4, 8]]
    greedy = generate(new_model, None, prompt, temperature=0, max_new=8, eos=(), start=0).run()  # type: ignore[arg-type]
    result = beam(new_model, None, prompt, beams=1, max_new=8, eos=(), start=0)  # type: ignore[arg-type]
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
    together = beam(new_model, None, prompts, **settings)  # type: ignore[arg-type]
    for prompt, result in zip(prompts, together, strict=True):
        alone = beam(new_model, None, [prompt], **settings)[0]  # type: ignore[arg-type]
        assert [h.tokens for h in alone] == [h.tokens for h in result]
        assert [h.score for h in alone] == pytest.approx([h.score for h in result], abs=1e-5)
        assert [h.score for h in result] == sorted(
            (sum(h.logprobs) / len(h.tokens) for h in result), reverse=True
        )


def test_equal_to_transformers():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    shape = {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 50,
    }
    model = T5ForConditionalGeneration(
        T5Config(**shape, decoder_start_token_id=0, dropout_rate=0.0)
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    from glassformer.formats import weights  # noqa: F401  # the recipe turns their weights into ours

    pytest.importorskip("glassformer.families.t5")
    import tempfile

    from glassformer import load

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        actual_model, _ = load(folder)
    assert isinstance(actual_model, EncoderDecoder)
    prompts = [[5, 7, 9, 11, 1], [4, 8, 22, 30, 1]]
    group = list(range(1, 50, 4))  # among so many endings beams end at every step
    cases = (
        (0.0, None, [1]),
        (1.0, None, [1]),
        (2.0, None, [1]),
        (0.0, 33, [1]),
        (0.0, None, group),
        (1.0, None, group),
    )
    for penalty, forced, bounds in cases:  # forced: a language's tag
        output = model.generate(
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
        room = 13 - len(start)
        hypotheses = beam(
            actual_model,
            None,
            prompts,
            beams=4,
            best=4,
            max_new=room,
            length_penalty=penalty,
            eos=bounds,
            start=start,
        )
        flat = [h for hypotheses in hypotheses for h in hypotheses]
        for row, score, hypothesis in zip(
            output.sequences.tolist(), output.sequences_scores.tolist(), flat, strict=True
        ):
            assert row[: len(start) + len(hypothesis.tokens)] == start + hypothesis.tokens
            assert score == pytest.approx(hypothesis.score, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 0}, "beams is 0"),
        ({"best": 5}, "best is 5"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"max_new": 0}, "max_new is 0"),
    ],
)
def test_settings_that_mean_nothing(settings, message):
    with pytest.raises(UserError, match=message):
        beam(model("gpt2"), None, [1], **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", [beam, generate])
@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([], "at least one"),
        ([0, 50], "50 is out of range"),
        (-1, "-1 is out of range"),
        *((bad, "give a token's id") for bad in ("de", [0.5], [True], [1] * 65)),
    ],
)
def test_a_beginning_that_is_none(variant, start, message):
    with pytest.raises(UserError, match=message):
        variant(model("t5"), None, [1], max_new=4, start=start)


def test_several_tokens_begin_a_target_on_the_greedy_path():
    new_model = model("t5")
    tokens = (
        generate(new_model, None, [[5, 7]], start=[0, 33, 4], max_new=6, temperature=0, eos=())
        .run()
        .tokens[0]
    )  # type: ignore[arg-type]
    row = [0, 33, 4]
    with torch.no_grad():
        for _ in range(6):
            row.append(
                int(new_model(torch.tensor([row]), torch.tensor([[5, 7]])).logits[0, -1].argmax())
            )  # type: ignore[operator]
    assert tokens == row[3:]
    assert (
        tokens
        == beam(new_model, None, [[5, 7]], beams=1, start=(0, 33, 4), max_new=6, eos=())[0][
            0
        ].tokens
    )  # type: ignore[arg-type]


def pooled(head: c.Head | None) -> c.Decoder:
    return replace(tiny.DECODERS["llama"], head=head, pool=c.Pool("last", normalize=True))


def test_a_decoder_with_a_pool_generates_and_one_without_a_head_says_that_it_cannot():
    plain = replace(pooled(c.Head()), pool=None)
    with_pool, alone = (build_model(cfg, seed=1).eval() for cfg in (pooled(c.Head()), plain))
    outputs = [
        generate(item, None, [[5, 7, 9]], max_new=8, eos=(), temperature=0)
        for item in (with_pool, alone)
    ]
    assert outputs[0].run().tokens == outputs[1].run().tokens
    assert beam(with_pool, None, [[5, 7, 9]], max_new=8, eos=()) == beam(
        alone, None, [[5, 7, 9]], max_new=8, eos=()
    )
    output = build_model(pooled(None), seed=1)(torch.tensor([[5, 7, 9]]))
    assert output.pooled.shape == (1, tiny.DIM) and output.logits.numel() == 0
    for variant in (generate, beam):
        with pytest.raises(UserError, match="no head over tokens"):
            variant(build_model(pooled(None), seed=1).eval(), None, [1], max_new=2)


def test_an_encoder_continues_nothing():
    with pytest.raises(UserError, match="encoder"):
        beam(model("bert"), None, [1])  # type: ignore[arg-type]


def test_a_prompt_is_done_when_as_many_have_ended_as_there_are_beams():
    # a longer one would be better
    new_model, settings = model("gpt2"), {"beams": 1, "max_new": 12, "length_penalty": 9.0}
    tokens = beam(new_model, None, [[5, 7, 9]], eos=(), **settings)[0][0].tokens  # type: ignore[arg-type]
    hypotheses = beam(new_model, None, [[5, 7, 9]], eos=tokens[3], **settings)[0][0]  # type: ignore[arg-type]
    assert hypotheses.tokens == tokens[: tokens.index(tokens[3]) + 1] and hypotheses.finish == "eos"


def test_a_beam_ends_where_the_context_does():
    prompt = [1 + place % 40 for place in range(tiny.CONTEXT - 2)]
    for beams in (1, 3):
        hypotheses = beam(model("llama"), None, [prompt], beams=beams, eos=())[0][0]  # type: ignore[arg-type]
        # the last one is never read back
        assert len(hypotheses.tokens) == 3 and hypotheses.finish == "length"


def test_many_sources_are_answered_in_their_order():
    tokenizer = train_tokenizer("char", ["abcdefgh"], None, ("<pad>", "<s>", "</s>", "<unk>"))
    new_model, sources = model("vaswani"), ["abcdefgh", "a", "hgfed", "cab", "bb"]
    options = {"beams": 2, "max_new": 6}
    results = search(new_model, tokenizer, sources, batch=2, **options)  # type: ignore[arg-type]
    for source, hypotheses in zip(sources, results, strict=True):
        alone = search(new_model, tokenizer, [source], **options)[0]  # type: ignore[arg-type]
        assert [h.tokens for h in hypotheses] == [h.tokens for h in alone]
    assert len({tuple(hypotheses[0].tokens) for hypotheses in results}) > 1


@pytest.mark.parametrize("name", ["vaswani", "gpt2"])
def test_a_source_too_long_is_refused_or_cut(name):
    tokenizer = train_tokenizer("char", ["abcdefgh"], None, ("<pad>", "<s>", "</s>", "<unk>"))
    model = build_model(replace(tiny.ALL[name], context=12), seed=3).eval()
    # eos closes a source; a decoder reads bos, source and what starts a target
    room = 11 if name == "vaswani" else 10
    long = "abcdefghabcdefgh"
    with pytest.raises(UserError, match="context is 12"):
        search(model, tokenizer, [long], beams=2, max_new=2)
    for cut, saved in (("end", long[:room]), ("start", long[-room:])):
        result, right = (
            search(model, tokenizer, [item], beams=2, max_new=2, cut=cut)[0][0]
            for item in (long, saved)
        )
        assert result.tokens == right.tokens and result.score == pytest.approx(
            right.score, abs=1e-6
        )
    with pytest.raises(UserError, match="cut is"):
        search(model, tokenizer, [long], cut="middle")  # type: ignore[arg-type]


@pytest.mark.parametrize("beams", [2, 3])
def test_only_endings_among_the_best_count(beams):
    """Candidates behind the first ``beams`` of twice as many only take the place of ended ones."""
    new_model, prompt = model("llama"), [5, 7, 9]
    with torch.no_grad():
        likeliest = new_model(torch.tensor([prompt])).logits[0, -1].topk(2 * beams).indices.tolist()  # type: ignore[operator]
    # one ends among the best, which leaves room to look behind them
    bounds = (likeliest[0], likeliest[beams])
    # short ones are before long ones
    options = {"beams": beams, "best": beams, "max_new": 4, "length_penalty": 0.0}
    hypotheses = beam(new_model, None, [prompt], eos=bounds, **options)[0]  # type: ignore[arg-type]
    assert [likeliest[0]] in [hypothesis.tokens for hypothesis in hypotheses]
    assert [likeliest[beams]] not in [hypothesis.tokens for hypothesis in hypotheses]


def test_the_likeliest_of_a_large_vocabulary_are_all_found():
    """With what is left over behind the last whole block, and equals across blocks."""
    logprobs = torch.randn(5, 128 * 40 + 77, generator=torch.Generator().manual_seed(2))
    logprobs[0, -1], logprobs[1, 300:420], logprobs[2, 128 * 7 : 128 * 7 + 9] = (
        9.0,
        8.0,
        torch.arange(9.0) + 5,
    )
    best, places = _likeliest(logprobs, 8)
    assert torch.equal(best, logprobs.topk(8)[0]) and torch.equal(logprobs.gather(1, places), best)
    assert all(len(set(row)) == 8 for row in places.tolist())
