"""Edits do what their names say, held against passes written out by hand; what touches nothing
changes no bit.

For each page of edits: base, parts, tokens, values,
and parsing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import tiny
from glassformer import config as c
from glassformer.core.errors import UserError
from glassformer.core.generation import beam, generate
from glassformer.core.nn import Tape, build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import look
from glassformer.sight.edits import (
    Edit,
    apply,
    attn_off,
    expert_off,
    head_off,
    mask_token,
    mlp_off,
    parse,
    patch,
    project_out,
    scale,
    set_attention,
    set_value,
    steer,
    swap_token,
)
from glassformer.sight.inputs import token_ids
from glassformer.sight.reading import Reading, build_hooks
from glassformer.tasks.evaluation import likelihoods, score
from glassformer.tasks.predictions import classify, tag
from mistakes import SENTENCES, mistake

MODELS = {name: tiny.model(cfg) for name, cfg in tiny.ALL.items()}
ATTENTION = "decoder.blocks.0.attn"


def inputs_of(model, rows=2, length=10):
    """Tokens, and a source where one is read."""
    pair = isinstance(model.config, c.EncoderDecoder)
    return tiny.tokens(rows, length), {"source": tiny.tokens(rows, 8, seed=3)} if pair else {}


def values(
    model,
    *edits,
    paths=(),
    tokens=None,
    source=None,
):
    """What a pass with these edits computes, of the texts of ``inputs_of`` where none are given."""
    text, pair = inputs_of(model)
    pair = pair if source is None else {"source": source}
    return look(model, None, text if tokens is None else tokens, *paths, edits=edits, **pair)


def side_of(model):
    return "decoder" if hasattr(model, "decoder") else "encoder"


def value_at(model, path, *edits, **texts):
    return values(model, *edits, paths=(path,), **texts)[path]


def logits(model, *edits, **texts):
    return value_at(model, "logits", *edits, **texts)


# --------------------------------------------------------------------------------------- touching
# nothing


@pytest.mark.parametrize("name", tiny.ALL)
def test_edits_that_touch_nothing_change_no_bit(name):
    model = MODELS[name]
    full = values(model)
    free = [
        path
        for path in full
        if not path.endswith(("scores", "pattern")) and not path.startswith("pool.")
    ]
    item = [
        *(patch(path, full) for path in free),  # what each value is anyway
        scale("decoder.out" if "decoder.out" in full else "encoder.out", 1.0),
        steer("*.out", [0.0] * tiny.DIM, positions=(2,)),
        set_value("*.out", 0.0, positions=()),
        scale("*.out", 3.0, index=()),
    ]
    if any(path.endswith(".z") for path in full):
        item += [
            head_off("*", 0, positions=()),
            attn_off("*", positions=()),
            set_attention("*", 0, (), [1.0]),
        ]
    edited = values(model, *item)
    assert list(edited) == list(full)
    for path, value in full.items():
        assert torch.equal(value, edited[path]), path


@pytest.mark.parametrize("name", tiny.ALL)
def test_attention_patched_by_itself_is_itself(name):
    model = MODELS[name]
    full = values(model)
    edits = [patch(path, full) for path in full if path.endswith(("scores", "pattern"))]
    assert_close(logits(model, *edits), full["logits"], rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------ parts,
# by hand


def zeroed(model, path, cut):
    tokens, source = inputs_of(model)

    def zero(_, value):
        value = value.clone()
        value[cut] = 0
        return value

    with torch.no_grad():
        return model(tokens, *source.values(), tape=Tape(edits={path: zero})).logits


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "vaswani", "t5", "bert", "phi2"])
def test_heads_attentions_and_layers_are_off(name):
    model = MODELS[name]
    path, plain = f"{side_of(model)}.blocks.1", logits(model)
    positions = [1, -1]
    cases: list[tuple[Edit, str, Any]] = [
        (head_off(f"{path}.attn", 2), "attn.z", (slice(None), 2)),
        (head_off(f"{path}.attn", 1, positions="4:"), "attn.z", (slice(None), 1, slice(4, None))),
        (attn_off(f"{path}.attn"), "attn.write", ...),
        (attn_off(f"{path}.attn", positions=positions), "attn.write", (slice(None), positions)),
        (mlp_off(f"{path}.ffn"), "ffn.write", ...),
        (mlp_off(f"{path}.ffn", positions=positions), "ffn.write", (slice(None), positions)),
    ]
    if isinstance(model.config, c.EncoderDecoder):
        cases.append((head_off(f"{path}.cross", 0), "cross.z", (slice(None), 0)))
    for edit, leaf, cut in cases:
        off = zeroed(model, f"{path}.{leaf}", cut)
        assert torch.equal(logits(model, edit), off) and not torch.equal(off, plain), edit


def test_a_heads_mean():
    """Of one text, of a left-padded one, and of each of two documents in a row."""
    model, edit = MODELS["llama"], head_off(ATTENTION, 3, "mean")
    tokens, _ = inputs_of(model)

    def mean(_, z):
        return torch.cat((z[:, :3], z[:, 3:].mean(2, keepdim=True).expand_as(z[:, 3:])), 1)

    def edited(tokens, **fields):
        _, _, hooks = apply([edit], model, tokens)
        return model(tokens, tape=Tape(edits=hooks), **fields).logits

    with torch.no_grad():
        cut = model(tokens, tape=Tape(edits={f"{ATTENTION}.z": mean})).logits
        assert_close(logits(model, edit), cut)
        places = torch.arange(10)
        padded = edited(tokens, pos=torch.stack((places, (places - 4).clamp(min=-1))))
        alone = logits(model, edit, tokens=tokens[1:, 4:])
        assert_close(padded[1:, 4:], alone)
        documents = {"pos": places.remainder(4)[None], "document_ids": places[None] // 4}
        alone = logits(model, edit, tokens=tokens[:1, 4:8])
        assert_close(edited(tokens[:1], **documents)[:, 4:8], alone)


@pytest.mark.parametrize("name", ["mixtral", "deepseek", "nanomoe"])
@pytest.mark.parametrize("off", [(1,), (0, 3), (0, 1, 2)])
def test_experts_are_off(name, off):
    model = MODELS[name]
    piece, ffn = "decoder.blocks.0.ffn", model.decoder.blocks[0].ffn
    edits = [expert_off(piece, expert) for expert in off]
    observed, plain = (
        {path.removeprefix(f"{piece}."): value for path, value in values(model, *of).items()}
        for of in (edits, ())
    )
    x = plain["in"]
    up = torch.einsum("btd,ehd->bteh", x, ffn.up)
    gate = None if ffn.gate is None else torch.einsum("btd,ehd->bteh", x, ffn.gate)
    hidden = ffn.act(up) if gate is None else ffn.act(gate) * up
    expert_outputs = torch.einsum("bteh,edh->bted", hidden, ffn.down)
    p = (x @ ffn.router.weight.T).softmax(-1)
    indices = p.topk(ffn.cfg.top_k, -1).indices
    p[..., off] = 0
    weight, chosen = p.topk(ffn.cfg.top_k, -1)
    if ffn.cfg.normalize:
        weight = weight / weight.sum(-1, keepdim=True)
    written = (expert_outputs.take_along_dim(chosen[..., None], 2) * weight[..., None]).sum(2)
    assert_close(observed["write"], written + plain.get("shared.write", 0))
    untouched = ~torch.isin(indices, torch.tensor(off)).any(-1)
    twice = value_at(model, f"{piece}.weight", scale(f"{piece}.weight", 2.0), *edits)
    # an earlier edit of theirs stays
    assert torch.equal(twice[untouched], 2 * plain["weight"][untouched])
    for leaf in ("weight", "chosen"):
        assert torch.equal(observed[leaf][untouched], plain[leaf][untouched])
    # where too few are left, one that is off stands there with weight 0
    assert (observed["weight"][torch.isin(observed["chosen"], torch.tensor(off))] == 0).all()


# -------------------------------------------------------------------------------------------
# another text


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "alibi", "strided", "glass", "bert"])
def test_a_masked_token_reaches_nobody(name):
    """A token's contents make no difference to the others once it is masked, and its own column is
    unchanged."""
    model = MODELS[name]
    tokens, _ = inputs_of(model)
    second = tokens.clone()
    second[:, 4] = (second[:, 4] + 7) % tiny.VOCAB
    elsewhere = [place for place in range(10) if place != 4]
    first, two = (logits(model, mask_token(4), tokens=text) for text in (tokens, second))
    assert torch.equal(first[:, elsewhere], two[:, elsewhere])
    assert not torch.equal(first[:, 4], two[:, 4])
    assert not torch.allclose(first[:, 5:], logits(model)[:, 5:], atol=1e-4)
    assert logits(model, mask_token(0), mask_token(1)).isfinite().all()
    for pattern in values(model, mask_token(4), paths=("*.pattern",)).values():
        assert (pattern[:, :, elsewhere, 4] == 0).all() and (pattern[:, :, 4, 4] > 0).all()


@pytest.mark.parametrize("name", ["vaswani", "t5", "attention-pair", "two vocabularies"])
def test_a_masked_token_of_a_source_reaches_nobody(name):
    model = MODELS[name]
    source = inputs_of(model)[1]["source"]
    second = source.clone()
    second[:, 2] = (second[:, 2] + 7) % tiny.VOCAB
    pair = [logits(model, mask_token(2, "source"), source=item) for item in (source, second)]
    assert torch.equal(*pair)
    assert not torch.allclose(pair[0], logits(model), atol=1e-4)
    alone = logits(model, mask_token(0, "source"), source=second[:, :1])
    assert alone.isfinite().all()  # nobody is left to look at


def test_an_encoder_reads_its_mask_token_instead():
    tokenizer = train_tokenizer("wordpiece", ["abc de"] * 9, 60)
    stack = c.Stack(1, (tiny.block(),), c.Learned(16), causal=False)
    model = build_model(c.Encoder(32, 16, c.Embed(tokenizer.size), stack), seed=1)
    masked = look(model, tokenizer, "abc de", "logits", edits=[mask_token(1)])["logits"]
    ids = token_ids(model, tokenizer, "abc de")
    ids[0, 1] = tokenizer.mask
    assert torch.equal(masked, logits(model, tokens=ids))


def test_swapped_tokens():
    model = MODELS["gpt2"]
    tokens, _ = inputs_of(model, 1)
    swapped = tokens.clone()
    swapped[0, 4], swapped[0, -1] = 9, 11
    second_logits = logits(model, swap_token(4, 9), swap_token(-1, 11), tokens=tokens)
    assert torch.equal(second_logits, logits(model, tokens=swapped))
    pair = MODELS["vaswani"]
    second = inputs_of(pair)[1]["source"].clone()
    second[:, 2] = 9
    assert torch.equal(logits(pair, swap_token(2, 9, "source")), logits(pair, source=second))


# ------------------------------------------------------------------------------------ values and
# attention


def test_values_by_position_head_and_index():
    model = MODELS["llama"]
    plain, row = values(model), torch.arange(32.0)
    ffn, q, embed = "decoder.blocks.0.ffn", f"{ATTENTION}.q", "decoder.embed"
    resid = "decoder.blocks.0.resid"
    want = {path: plain[path].clone() for path in (f"{ffn}.hidden", q, embed, resid)}
    want[f"{ffn}.hidden"][:, [[2], [9]], [5, 7]] *= 3
    want[q][:, 1, 3] = 0.25
    want[embed][:, :2] = torch.stack((row, 2 * row))
    want[embed][:, 2:, 3], want[embed][:, 2:, 1] = 1, 2
    want[resid][:, 8:] += -0.5 * row
    for path, *edits in (
        (f"{ffn}.hidden", scale(f"{ffn}.hidden", 3.0, positions=(2, -1), index=(5, 7))),
        (q, set_value(q, 0.25, 3, head=1)),
        (
            embed,
            set_value(embed, [1.0, 2.0], index=(3, 1)),
            set_value(embed, row, ":2"),
            scale(embed, 2.0, 1),
        ),
        (resid, steer(resid, row.tolist(), -0.5, positions="8:")),
    ):
        observed = values(model, *edits)
        assert torch.equal(observed[path], want[path]), path
        if path.endswith("hidden"):
            written = model.decoder.blocks[0].ffn.down(want[path]).detach()
            assert_close(observed[f"{ffn}.write"], written)


def test_a_direction_between_two_texts():
    model, tokenizer = byte_model()
    path = "decoder.blocks.0.resid"
    a, b = (look(model, tokenizer, text, path)[path][0, -1] for text in ("love", "hat"))
    plain = look(model, tokenizer, "abc", path)[path]
    moved = look(model, tokenizer, "abc", path, edits=[steer(path, ("love", "hat"), 2.0)])[path]
    assert_close(moved, plain + 2 * (a - b))


@pytest.mark.parametrize("name", ["llama", "gemma2", "vaswani", "bahdanau", "bert"])
def test_values_patched_from_another_run(name):
    """The whole stream of another text: from there on everything is that text's; by positions: that
    column alone."""
    model = MODELS[name]
    tokens, source = inputs_of(model)
    second = (tokens + 11) % tiny.VOCAB
    present = values(model, tokens=second)
    path = f"{side_of(model)}.embed"
    assert torch.equal(logits(model, patch(path, present)), present["logits"])
    row = look(model, None, second[:1], path, **{name: value[:1] for name, value in source.items()})
    moved = value_at(model, path, patch(path, row, positions=(3, 5), from_positions=(1, -1)))
    want = value_at(model, path).clone()
    want[:, 3], want[:, 5] = row[path][0, 1], row[path][0, -1]
    assert torch.equal(moved, want)


def test_a_patch_of_one_head_and_of_attention():
    model = MODELS["llama"]
    present, plain = values(model, tokens=(inputs_of(model)[0] + 11) % tiny.VOCAB), values(model)
    z, pattern = f"{ATTENTION}.z", f"{ATTENTION}.pattern"
    want = plain[z].clone()
    want[:, 2, 4] = present[z][:, 2, 4]
    assert torch.equal(values(model, patch(z, present, positions=4, head=2))[z], want)
    observed = values(model, patch(pattern, present, positions=6))[z]
    want = present[pattern] @ plain[f"{ATTENTION}.v"].repeat_interleave(2, 1)
    assert_close(observed[:, :, 6], want[:, :, 6])


@pytest.mark.parametrize("name", ["llama", "bert", "vaswani"])
def test_attention_is_set(name):
    model = MODELS[name]
    piece = f"{side_of(model)}.blocks.1.attn"
    plain = values(model)
    observed = values(
        model,
        set_attention(piece, 1, 5, [0.0, 0.75, 0.25]),
        set_attention(piece, 2, 6, {0: 1.0}, renormalise=True),
    )
    want = plain[f"{piece}.pattern"].clone()
    want[:, 1, 5] = 0
    want[:, 1, 5, 1], want[:, 1, 5, 2] = 0.75, 0.25
    want[:, 2, 6, 0] = 1
    want[:, 2, 6] /= want[:, 2, 6].sum(-1, keepdim=True)
    assert_close(observed[f"{piece}.pattern"], want)
    v = plain[f"{piece}.v"]
    v = v.repeat_interleave(4 // v.shape[1], 1)
    assert_close(observed[f"{piece}.z"], want @ v)


def test_attention_of_a_recurrent_decoder_is_set():
    model = MODELS["bahdanau"]
    path = "decoder.cross.pattern"
    observed = value_at(
        model,
        path,
        set_attention("decoder.cross", None, (2, 3), {1: 1.0}),
        set_attention("decoder.cross", 0, 4, [0.5, 0.5]),
    )
    plain = value_at(model, path)
    assert (observed[:, 0, 2:4, 1] == 1).all() and torch.equal(observed[:, 0, :2], plain[:, 0, :2])
    assert torch.equal(observed[:, 0, 4], torch.tensor([0.5, 0.5, *[0.0] * 6]).expand(2, -1))


def test_a_direction_is_projected_out():
    model = MODELS["gpt2"]
    path, unit = "decoder.blocks.0.resid", torch.nn.functional.normalize(torch.arange(32.0), dim=0)
    plain = value_at(model, path)
    gone = value_at(model, path, project_out(path, (3 * unit).tolist()))
    assert_close(gone, plain - (plain @ unit)[..., None] * unit, rtol=1e-5, atol=1e-6)
    half = value_at(model, path, project_out(path, unit, 0.5, positions=(2,)))
    assert torch.equal(half[:, :2], plain[:, :2])
    assert_close(half[:, 2] @ unit, plain[:, 2] @ unit / 2, rtol=1e-4, atol=1e-5)
    drawn = value_at(model, path, project_out(path, unit, random=1)) - plain
    assert drawn.abs().max() > 0.01 and torch.linalg.matrix_rank(drawn.flatten(0, 1)) == 1


def test_several_edits_of_one_path_come_in_their_order():
    model = MODELS["gpt2"]
    path, ones = "decoder.blocks.0.resid", [1.0] * 32
    plain = value_at(model, path)
    moved_first = value_at(model, path, steer(path, ones), scale(path, 2.0))
    scaled_first = value_at(model, path, scale(path, 2.0), steer(path, ones))
    assert torch.equal(moved_first, (plain + 1) * 2) and torch.equal(scaled_first, plain * 2 + 1)
    assert torch.equal(value_at(model, path, scale("decoder.blocks.*.resid", 2.0)), plain * 2)


# -------------------------------------------------------------------------------- generation and
# evaluation

EDITS: dict[str, list[Edit]] = {
    "llama": [
        head_off(ATTENTION, 1),
        steer("decoder.blocks.1.resid", [0.5] * 32, positions="7:"),
        mask_token(2),
        project_out("decoder.blocks.0.resid", [1.0] * 32, positions="3:"),
    ],
    "gpt2": [
        head_off(ATTENTION, 3, "mean"),
        mlp_off("decoder.blocks.1.ffn", positions=(1, 8, 9)),
        swap_token(-1, 5),
    ],
    "gemma2": [
        set_attention("decoder.blocks.1.attn", 2, None, {1: 0.5}, renormalise=True),
        attn_off(ATTENTION, 11),
    ],
    "alibi": [mask_token(0), scale("decoder.blocks.0.ffn.hidden", -1.0, index=(3, 4))],
    "glass": [
        mask_token(5),
        set_value("logits", -9.0, index=7),
        scale("logits", -1.0, positions=7),
    ],
    "starcoder2": [scale(f"{ATTENTION}.v", 2.0, positions=(3, 4, 9)), mask_token(6)],
    "mixtral": [
        expert_off("decoder.blocks.*.ffn", 1),
        head_off("decoder.blocks.1.attn", 0, "mean"),
    ],
    "phi2": [scale(f"{ATTENTION}.k", 0.5, positions=":4"), mlp_off("decoder.blocks.0.ffn", "9:")],
    "gru": [scale("decoder.cells.0.state", 0.5, positions=(4, 8)), swap_token(2, 7)],
    "vaswani": [
        mask_token(3, "source"),
        head_off("decoder.blocks.1.cross", 2, "mean"),
        swap_token(1, 4, "source"),
    ],
    "t5": [
        scale("decoder.blocks.0.cross.k", 2.0, positions=(1, 2)),
        mask_token(0),
        head_off("encoder.blocks.0.attn", 1),
    ],
    "bahdanau": [
        set_attention("decoder.cross", None, "2:", {0: 0.9}),
        scale("encoder.out", 1.5, positions=1),
    ],
}


def uncached(model, edits, start, source, count):
    """Greedy tokens and their log-probabilities, everything read again for each."""
    reading = Reading(model, [list(start)], None if source is None else [list(source)], grows=True)
    hooks, logprobs = build_hooks(edits, reading), []
    assert reading.rows is not None
    ids = list(reading.rows[0])
    for _ in range(count):
        two = [
            torch.tensor([ids]),
            *map(torch.tensor, [reading.sources] if reading.sources else []),
        ]
        with torch.no_grad():
            best = model(*two, tape=Tape(edits=hooks)).logits[0, -1].log_softmax(-1).max(-1)
        ids.append(int(best.indices))
        logprobs.append(best.values.item())
    return ids[len(start) :], logprobs


@pytest.mark.parametrize("name", EDITS)
def test_generation_with_edits_is_the_uncached_one(name):
    """Cached, in a left-padded batch, with rows that end: what passes over the whole text say."""
    model, edits = MODELS[name], EDITS[name]
    pair = isinstance(model.config, c.EncoderDecoder)
    # an edit that counts from the end needs prompts of one length
    last = 8 if any("swap_token(-1" in repr(edit) for edit in edits) else 7
    prompts = [
        tiny.tokens(1, size, seed=seed)[0].tolist() for seed, size in enumerate((8, 8, last))
    ]

    def run(**options):
        options |= {"temperature": 0, "max_new": 9, "start": [3, 4] if pair else None}
        return generate(model, None, prompts, **options).run()

    output = run(edits=edits, eos=())
    for prompt, *row in zip(prompts, output.tokens, output.logprobs, strict=True):
        tokens, logprobs = uncached(model, edits, *([3, 4], prompt) if pair else (prompt, None), 9)
        assert row[0] == tokens
        assert_close(row[1], logprobs, rtol=1e-4, atol=1e-4)
    far = torch.tensor(run(eos=()).logprobs) - torch.tensor(output.logprobs)
    assert far.abs().max() > 1e-2
    end = output.tokens[0][1]  # the first row ends and leaves; the others take its place
    cut = [row[: row.index(end) + 1] if end in row else row for row in output.tokens]
    assert run(edits=edits, eos={end}).tokens == cut


def test_samples_and_beams_of_edited_prompts_keep_to_their_rows():
    model, edits = MODELS["gpt2"], [head_off("decoder.blocks.*.attn", 1, "mean")]
    prompts = [tiny.tokens(1, 8, seed=size)[0].tolist() for size in (8, 9)]

    def samples(prompts):
        options = {"max_new": 6, "samples": 3, "seed": 5, "edits": edits}
        return generate(model, None, prompts, **options).run().tokens

    def best(prompts, beams=3):
        options = {"beams": beams, "max_new": 5, "eos": (), "edits": edits}
        return beam(model, None, prompts, **options)[-1][0].tokens

    assert samples(prompts)[3:] == samples(prompts[1:])
    assert best(prompts) == best(prompts[1:])
    assert best(prompts[:1], beams=1) == uncached(model, edits, prompts[0], None, 5)[0]


def test_a_long_generation_by_prepacked_weights_is_edited_too():
    model, edits = MODELS["llama"], EDITS["llama"]
    prompts = [tiny.tokens(1, 8, seed=seed)[0].tolist() for seed in range(2)]
    output = generate(model, None, prompts, temperature=0, max_new=40, eos=(), edits=edits).run()
    assert output.tokens == [uncached(model, edits, prompt, None, 40)[0] for prompt in prompts]


def test_without_edits_generation_has_no_tape(monkeypatch):
    model, calls = MODELS["gpt2"], []
    forward = type(model).forward

    def watched(self, *args, **named):
        calls.append(named.get("tape"))
        return forward(self, *args, **named)

    monkeypatch.setattr(type(model), "forward", watched)
    generate(model, None, [1, 2, 3], max_new=3, eos=()).run()
    assert calls == [None] * 3


def byte_model(specials=()):
    tokenizer = train_tokenizer("byte", specials=specials)
    shape = replace(tiny.gpt2(), embed=c.Embed(tokenizer.size))
    return tiny.model(shape), tokenizer


def test_scores_with_edits_are_those_of_edited_passes():
    model, tokenizer = byte_model(("<s>",))
    text, edits = "It was too tired to pass", [head_off(ATTENTION, 1), mask_token(0)]
    ids = tokenizer.encode(text)

    def logprobs(ids):
        """Of each token but the first, after those before it."""
        observed = logits(model, *edits, tokens=ids[:-1])[0].log_softmax(-1)
        return observed.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    loss = -logprobs([tokenizer.bos, *ids]).mean().item()
    assert score(model, tokenizer, text, edits=edits).loss == pytest.approx(loss, rel=1e-5)
    assert score(model, tokenizer, text).loss != pytest.approx(loss, rel=1e-3)
    # several windows, each alone
    many = score(model, tokenizer, text, edits=edits, context=8, stride=8).loss
    pieces = [[tokenizer.bos, *ids][index : index + 9] for index in range(0, len(ids), 8)]
    total = -sum(logprobs(piece).sum().item() for piece in pieces)
    assert many == pytest.approx(total / len(ids), rel=1e-5)
    first, *_ = likelihoods(model, [(ids[:5], ids[5:9]), (ids[:3], ids[3:6])], edits=edits)
    assert first.logprob == pytest.approx(logprobs(ids[:9])[4:].sum().item(), rel=1e-5)
    off = score(model, tokenizer, text, edits=[set_value("logits", 0.0)]).loss
    assert off == pytest.approx(torch.tensor(float(tokenizer.size)).log().item(), rel=1e-6)


def test_labels_with_edits():
    tokenizer = train_tokenizer("byte", specials=("<s>", "</s>"))
    stack = c.Stack(2, (tiny.block(),), c.Learned(16), causal=False)
    base = c.Encoder(
        32, 16, c.Embed(tokenizer.size), stack, c.Head(), tiny.WIDE, c.Pool("first", labels=3)
    )
    model = tiny.model(base)
    edits = [head_off("encoder.blocks.0.attn", 2), scale("pool.write", 2.0)]
    logits = classify(model, tokenizer, ["abc", "de"], edits=edits).probabilities
    ids = tokenizer.encode_pairs(["abc"], most=16)[0][0]
    observed = value_at(model, "pool.write", *edits, tokens=ids).softmax(-1)
    assert_close(logits[:1], observed)
    tagger = tiny.model(replace(base, pool=None, token_head=c.TokenHead(3)))
    item, two = (
        tag(tagger, tokenizer, [["ab", "c"]], edits=group)[0].probabilities
        for group in (edits[:1], ())
    )
    assert not torch.allclose(item, two)


# --------------------------------------------------------------------------------------- words,
# mistakes

LINES = [
    'head_off("decoder.blocks.0.attn", 1)',
    'head_off("decoder.blocks.*.attn", 0, fill="mean", positions="2:")',
    'attn_off("decoder.blocks.0.attn", positions=(3,))',
    'mlp_off("decoder.blocks.1.ffn")',
    'expert_off("decoder.blocks.0.ffn", 2)',
    "mask_token(3)",
    'mask_token(1, side="source")',
    'swap_token(-1, " dog")',
    'scale("decoder.blocks.0.ffn.hidden", 0.5, index=7)',
    'set_value("decoder.blocks.0.resid", [1.0, 2.0], positions=(1, 2))',
    'set_attention("decoder.blocks.0.attn", 1, (5,), {2: 1.0})',
    'set_attention("decoder.blocks.0.attn", None, None, [1.0], renormalise=True)',
    'steer("decoder.blocks.0.resid", ("Love", "Hate"), scale=4.0)',
    'project_out("decoder.blocks.0.resid", [1.0, 2.0], positions=(1,), random=3)',
    'patch("decoder.blocks.0.resid", "Another text", positions=(1,), from_positions=(2,))',
]


@pytest.mark.parametrize("line", LINES)
def test_an_edit_reads_as_it_is_written(line):
    assert repr(parse(line)) == line
    assert dataclasses.is_dataclass(parse(line))
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(line).path = 1


@pytest.mark.parametrize("line, message", SENTENCES["lines that are no edit"])
def test_a_line_that_is_no_edit_is_refused(line, message):
    with mistake(message.replace("(", r"\(")):
        parse(line)


@pytest.mark.parametrize(
    "name, edit, message",
    [
        *SENTENCES["edits"],
        (
            "gpt2",
            patch("decoder.embed", {"decoder.out": torch.zeros(1, 10, 32)}),
            'no value "decoder.embed"',
        ),
        ("gpt2", patch("decoder.embed", torch.zeros(1, 10, 16)), "give a run of this model"),
        ("gpt2", patch("decoder.embed", torch.zeros(1, 9, 32)), "has 9 tokens and the text has 10"),
        (
            "gpt2",
            patch("decoder.embed", torch.zeros(3, 10, 32)),
            "holds 3 texts and the model reads 2",
        ),
        ("gpt2", patch("decoder.embed", torch.zeros(1, 4, 32), positions=5), "it has 4 tokens"),
    ],
)
def test_what_does_not_exist_is_a_sentence(name, edit, message):
    with mistake(message):
        logits(MODELS[name], edit)


def test_what_is_no_edit_is_a_sentence():
    with mistake("'head_off' is no edit"):
        look(MODELS["gpt2"], None, [1, 2], "logits", edits=["head_off"])
    for wrong in ({"decoder.embed": abs}, [abs]):
        with mistake("Edits are a list"):
            look(MODELS["gpt2"], None, [1, 2], "logits", edits=wrong)
    with mistake("mlp_off"):
        logits(
            MODELS["mixtral"], *(expert_off("decoder.blocks.0.ffn", index) for index in range(4))
        )
    with mistake("sliding"):
        generate(MODELS["gpt2"], None, [1, 2], slide=True, edits=[mask_token(0)])
    with mistake("count from 0"):
        generate(MODELS["gpt2"], None, [[1, 2], [3]], edits=[mask_token(-1)])


@pytest.mark.parametrize(
    "line", [f'head_off("{ATTENTION}", 2)', 'scale("decoder.blocks.1.resid", 0.5)']
)
def test_a_line_is_the_edit_that_it_writes(line):
    model, edit = MODELS["llama"], parse(line)
    assert not torch.equal(logits(model), logits(model, edit))
    for edits in ([line], line):
        observed = look(model, None, inputs_of(model)[0], "logits", edits=edits)["logits"]
        assert torch.equal(observed, logits(model, edit))
    by_line, by_edit = (
        generate(model, None, [1, 2, 3], max_new=4, temperature=0, edits=[change]).run().tokens
        for change in (line, edit)
    )
    assert by_line == by_edit


@pytest.mark.parametrize(
    "edit",
    [
        scale("decoder.blocks.0.resid", float("nan")),
        scale("decoder.blocks.1.resid", float("inf"), positions=3),
        scale("decoder.blocks.0.attn.scores", float("nan")),
        set_value("decoder.embed", float("nan"), positions=0),
        steer("decoder.blocks.0.resid", torch.ones(32), float("nan")),
    ],
)
def test_the_edit_that_makes_nan_is_named_and_no_weight(edit):
    with pytest.raises(UserError) as output:
        logits(MODELS["llama"], edit)
    assert str(output.value).startswith(repr(edit)) and "weights" not in str(output.value)


def test_an_infinite_score_hides_a_key():
    off = set_value(f"{ATTENTION}.scores", float("-inf"), head=1, index=0, positions="1:")
    observed = value_at(MODELS["llama"], f"{ATTENTION}.pattern", off)
    assert bool((observed[:, 1, 1:, 0] == 0).all()) and bool((observed[:, 0, 1:, 0] > 0).all())


def test_routers_are_seen_as_edited():
    """An edit of the router after the expert that is off counts: the choice is made of what the
    router then says."""
    model = MODELS["nanomoe"]
    piece, row = "decoder.blocks.0.ffn", [9.0, 2.0, 1.0, 0.0]
    observed = values(
        model,
        expert_off(piece, 0),
        set_value(f"{piece}.router", row),
        paths=(f"{piece}.chosen", f"{piece}.weight"),
    )
    p = torch.tensor(row).softmax(0)[1:3]
    assert (observed[f"{piece}.chosen"] == torch.tensor([1, 2])).all()
    assert_close(observed[f"{piece}.weight"], (p / p.sum()).expand(2, 10, -1))


@pytest.mark.parametrize("text, sentence", SENTENCES["literals of an edit"])
def test_a_literal_of_another_type_is_a_sentence(text, sentence):
    with mistake(sentence):
        parse(text)
