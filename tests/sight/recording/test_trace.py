"""Addresses, values by head and row, bounds of memory, and the way back from a probability to the
embedding."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
import tiny
from glassformer.core.nn import Tape
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.sight import edits, look
from glassformer.sight.recording import Explanation
from glassformer.sight.recording.trace import Trace, record, trace
from mistakes import SENTENCES, mistake


def of(name, length=11, **kwargs):
    model = tiny.model((tiny.ALL | tiny.SINKS)[name])
    return traced(model, length, **kwargs)


def traced(model, length=11, **kwargs):
    source = tiny.tokens(1, 9, seed=5) if name_of(model) == "EncoderDecoder" else None
    return Trace(model, None, tiny.tokens(1, length), source, **kwargs)  # type: ignore[arg-type]


def name_of(model):
    return type(model.config).__name__


def test_values_are_those_that_looking_gives():
    model, tokens = tiny.model("llama"), tiny.tokens(1, 11)
    observed, full = look(model, None, tokens), trace(model, None, tokens)
    for path, value in observed.items():
        assert_close(full[path], value, rtol=1e-5, atol=1e-5)
    assert torch.equal(full["decoder.blocks.1.attn.q"], observed["decoder.blocks.1.attn.q"])
    assert isinstance(glassformer.trace(model, None, tokens), Trace)


def test_a_head_or_a_row_is_that_of_the_whole():
    for name in ("gemma2", "relative", "alibi", "t5", "bahdanau"):
        item, second = of(name), of(name)
        for op in item.plan:
            if op.quadratic:
                full, h = item[op.id], op.shape[1] - 1
                row, head = second[f"{op.id}[{h},7,:]"], second[f"{op.id}[0,:,:]"]
                assert_close(row, full[0, h, 7], rtol=1e-6, atol=1e-6)
                assert_close(head, full[0, 0], rtol=1e-6, atol=1e-6)


def test_the_sum_of_a_score_by_hand():
    item = of("llama")
    q, k = item["decoder.blocks.0.attn.q"], item["decoder.blocks.0.attn.k"]
    cell = item.explain("decoder.blocks.0.attn.qk[3,7,2]")
    products = (q[0, 3, 7] * k[0, 1, 2]).double()  # four heads read two keys: head 3 the second
    assert_close(cell.terms, q[0, 3, 7].double() * k[0, 1, 2].double())
    assert cell.value == pytest.approx(float(products.sum()), rel=1e-6)
    assert [len(group) for group in cell.factors] == [8, 8]
    assert cell.operands[0].address == "decoder.blocks.0.attn.q[3,7,0]"
    scaled = item.explain("decoder.blocks.0.attn.scaled[3,7,2]")
    assert scaled.value == pytest.approx(cell.value / 8**0.5, rel=1e-6)
    pattern = item.explain("decoder.blocks.0.attn.pattern[3,7,2]")
    scores = item["decoder.blocks.0.attn.scores[3,7,:]"]
    assert pattern.value == pytest.approx(float(F.softmax(scores, -1)[2]), rel=1e-6)
    assert float(pattern.terms.sum()) == pytest.approx(1.0)
    hidden = item.explain("decoder.blocks.0.attn.scores[3,2,7]")
    assert hidden.value == hidden.recomputed == -float("inf")
    assert hidden.difference == 0.0


@pytest.mark.parametrize("name", tiny.ALL | tiny.SINKS)
def test_the_way_back_ends_at_tables_and_weights(name):
    item = of(name)
    *_, final = item.plan
    places = ",".join("1" if size > 1 else "0" for size in final.shape)
    steps: list[Explanation] = list(item.why(f"{final.id}[{places}]", 400))
    assert steps[-1].kind in ("input", "weight", "created")
    assert len(steps) < 400
    observed = set[str]()

    def follow(address, depth=0):  # every operand of a few cells, all the way
        cell = item.explain(address)
        if cell.address in observed or len(observed) > 75:
            return
        observed.add(cell.address)
        for operand in cell.operands[:3] + cell.operands[-2:]:
            back = item.explain(operand.address)
            assert back.value == pytest.approx(operand.value, rel=1e-6, abs=1e-9), operand
            follow(operand.address, depth + 1)

    follow(steps[0].address)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gru", "mixtral", "gemma2"])
@pytest.mark.parametrize("keep", [0, 5_000])
def test_what_is_over_the_bound_is_computed_again(name, keep):
    full, little = of(name), of(name, keep=keep)
    assert full.tier == "full" and little.tier == "part"
    assert little.kept_bytes <= keep < full.kept_bytes
    for op in full.plan:
        assert_close(little[op.id], full[op.id], rtol=1e-5, atol=1e-5, msg=op.id)
        at = op.id + f"[{','.join('0' for _ in op.shape)}]"
        assert little.explain(at).to_dict(4)["terms"] == full.explain(at).to_dict(4)["terms"]


def test_edits_are_told():
    model, tokens = tiny.model("llama"), tiny.tokens(1, 11)

    def off(path, z):
        return z * torch.tensor([1.0, 0, 1, 1]).view(1, 4, 1, 1)

    edits = {"decoder.blocks.0.attn.z": off}
    trace, cut = Trace(model, None, tokens), Trace(model, None, tokens, edits=edits)
    with torch.no_grad():
        assert torch.equal(cut["logits"], model(tokens, tape=Tape(edits=edits)).logits)
    assert not torch.equal(cut["logits"], trace["logits"])
    cell = cut.explain("decoder.blocks.0.attn.z[1,5,3]")
    assert cell.edited
    assert cell.value == cell.recomputed == 0.0
    before = float(trace["decoder.blocks.0.attn.z[1,5,3]"])
    assert f"It was {before:.6g}; the edit adds {-before:+.6g}." in cell.sentence
    assert cut.check() == 0.0
    renamed = Trace(tiny.model("bert"), None, tokens, edits={"*.1.attn.in": lambda path, x: 2 * x})
    assert renamed.plan["encoder.blocks.1.attn.in"].kind == "edit"


def test_edits_by_name_and_a_masked_key():
    model, tokens = tiny.model("llama"), tiny.tokens(1, 11)
    changes = [edits.head_off("decoder.blocks.0.attn", 1), edits.mask_token(3)]
    cut = trace(model, None, tokens, edits=changes)
    observed = look(model, None, tokens, "logits", edits=changes)
    assert torch.equal(cut["logits"], observed["logits"])
    assert float(cut["decoder.blocks.1.attn.pattern[2,7,3]"]) == 0.0
    assert cut.explain("decoder.blocks.0.attn.z[1,5,3]").value == 0.0


def test_tokens_have_names():
    tokenizer = train_tokenizer("bpe", "the cat sat on the mat " * 20, size=300)
    config = tiny.decoder(tiny.LLAMA)
    model = tiny.model(tiny.replace(config, embed=tiny.c.Embed(tokenizer.size)))
    item = trace(model, tokenizer, "the cat sat")
    cell = item.explain("decoder.blocks.0.attn.pattern[1,2,0]")
    words = [tokenizer.token(number) for number in item.tokens[0].tolist()]
    assert words[2] == "Ġsat" and cell.place == 'head 1, token 2 "·sat", key 0 "the"'
    assert item.to_dict()["tokens"]["pieces"] == words
    assert item.explain('decoder.blocks.0.attn.pattern[1,"sat","the"]').address == cell.address
    assert item.parse('logits["cat"," sat"]')[1] == (0, 1, item.tokens[0, 2])
    assert item.explain('decoder.blocks.0.attn.pattern[1," sat","the"]').address == cell.address
    with mistake('No token of the text is "dog"'):
        item.parse('logits["dog",3]')
    with mistake("occurs at 0 and 3"):
        trace(model, tokenizer, "the cat sat the").parse('probs["the",0]')
    rows = len(tokenizer.encode("the dog")) - 1
    with mistake(rf'"dog" is {rows} tokens of the text: 1 .*Give one number'):
        trace(model, tokenizer, "the dog").parse('probs["dog",0]')
    with mistake("no words along H"):
        item.parse('decoder.blocks.0.attn.pattern["the",0,0]')
    assert len(item.lines()) == len(item.plan) + 1


@pytest.mark.parametrize("address, message", SENTENCES["addresses"])
def test_what_is_no_address_gets_a_sentence(address, message):
    with mistake(message):
        of("llama").explain(address)


def test_a_masked_share_says_that_the_mask_hides_the_key():
    hidden = of("llama").explain("decoder.blocks.0.attn.pattern[1,3,7]")
    assert hidden.value == 0 and "The mask hides this key" in hidden.sentence
    assert "hides" not in of("llama").explain("decoder.blocks.0.attn.pattern[1,7,3]").sentence


def test_a_trace_says_what_it_is():
    assert repr(of("llama")).startswith(
        f"<Trace of 11 tokens, {len(of('llama').plan.ops)} operations"
    )


def test_texts_that_cannot_be_traced_get_a_sentence():
    model = tiny.model("llama")
    with mistake("one text"):
        trace(model, None, tiny.tokens(2, 5))
    with mistake("context is 64"):
        trace(model, None, tiny.tokens(1, 65))
    with mistake("two texts"):
        trace(tiny.model("t5"), None, tiny.tokens(1, 5))
    broken = tiny.model("llama")
    broken.decoder.blocks[0].attn.q.weight.data[0, 0] = float("nan")
    with mistake(r"attn\.q\.weight holds NaN"):
        trace(broken, None, tiny.tokens(1, 5))


def test_indices_count_from_the_end_and_take_parts():
    item = of("gpt2")
    assert torch.equal(item["logits[-1]"], item["logits"][0, -1])
    assert torch.equal(
        item["decoder.blocks.0.attn.q[1, :, 2]"], item["decoder.blocks.0.attn.q"][0, 1, :, 2]
    )
    assert item.explain("logits[-1,-1]").address == f"logits[10,{tiny.VOCAB - 1}]"
    assert float(item["embed.token.weight[3,4]"]) == item.explain("embed.token.weight[3,4]").value


def test_causes_are_named_without_the_batch_row():
    causes = of("llama").attribute("logits[5,7]", "decoder.blocks.*.attn.z[head,5]")
    chosen = [cause.address for cause in causes.causes if cause.kind == "chosen"]
    assert chosen == [f"decoder.blocks.{at}.attn.z[{head},5]" for at in (0, 1) for head in range(4)]
    assert causes.difference < 1e-5 * abs(causes.value)


# ------------------------------------------------------------------------- a pass for one address


def for_address(model, address):
    source = tiny.tokens(1, 9, seed=5) if name_of(model) == "EncoderDecoder" else None
    return record(model, None, tiny.tokens(1, 11), source, address=address)


QUICK = {"gpt2", "gemma2", "mixtral", "bert", "t5", "mixed", "mamba2", "albert"}
"""One family of each kind; ``make test-all`` has them all."""


def block_of(address):
    match = re.match(r"\w+\.blocks\.\d+(?=\.)", address)
    return match.group() if match else ""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in tiny.ALL | tiny.SINKS
    ],
)
def test_a_pass_for_one_address_has_the_bits_of_the_whole_pass(name):
    """All of its block, of the blocks before it, and what none computes; nothing behind it."""
    model = tiny.model((tiny.ALL | tiny.SINKS)[name])
    traced(model)  # the first pass makes tables of positions
    full = traced(model)
    block_names = [*dict.fromkeys(block_of(op.id) for op in full.plan)]
    for block in {
        block_names[0],
        block_names[len(block_names) // 2],
    }:  # "": a number behind or before all blocks
        inside = [op.id for op in full.plan if block_of(op.id) == block]
        partial = for_address(model, f"{inside[0]}[0]")
        blocks = [[*dict.fromkeys(block_of(op.id) for op in x.plan)] for x in (partial, full)]
        assert blocks[0] == blocks[1][: blocks[1].index(block) + 1] or not block
        for op in partial.plan:
            assert torch.equal(partial[op.id], full[op.id]), (block, op.id)
        for address in (inside[len(inside) // 3], inside[-1]):
            at = f"{address}[{','.join('0' for _ in full.plan[address].shape)}]"
            shared = not partial.holds(at)  # a module that another block computes with too
            actual = (for_address(model, at) if shared else partial).why(at, 4)
            assert [x.to_dict(4) for x in actual] == [x.to_dict(4) for x in full.why(at, 4)]


def test_a_pass_for_one_address_ends_there_and_keeps_its_block():
    model = tiny.model("mixed")
    full, partial = traced(model), for_address(model, "decoder.blocks.2.attn.scores[0,7,2]")
    assert not partial.holds("decoder.blocks.3.resid") and not partial.holds("logits[0,0]")
    value_counts = dict.fromkeys(range(3), 0)
    for op in full.plan:
        if (block := op.layer) is not None and block < 3:
            value_counts[block] += partial.value(op.id).tensor is not None
    # of an earlier block its result, and z, which the engine computes in one
    assert value_counts[0] == value_counts[1] == 2 and value_counts[2] > 10
    assert partial.kept_bytes < full.kept_bytes / 2
    weight = for_address(model, "decoder.blocks.3.ffn.up.weight[2,1]")
    assert not weight.holds("decoder.blocks.0.resid")
    assert weight.explain("decoder.blocks.3.ffn.up.weight[2,1]").kind == "weight"
    logits = for_address(model, "logits[3,5]")
    assert torch.equal(logits.answer, full.answer) and logits.kept_bytes < full.kept_bytes / 2
    with mistake("Nothing has the address"):
        for_address(model, "decoder.blocks.2.attn.score").explain("decoder.blocks.2.attn.score[0]")
