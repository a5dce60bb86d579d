"""The instruments on models that are not ours, each held to what hooks, ``output_attentions`` and
``output_hidden_states`` give by hand: a pass (``passes``, ``recorded``) and its ``structure``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import tiny_transformers
from glassformer.sight import (
    attribute,
    describe,
    head_scores,
    logit_lens,
    look,
    patch_grid,
    predictions,
    saliency,
    top_activations,
    trace,
    word_in_contexts,
)
from glassformer.sight.heads import _texts, measure
from mistakes import mistake
from seeding import generator_from

pytest.importorskip("transformers")

NAMES = ("Llama", "GPT2", "Bert", "T5")
BLOCKS = {"Llama": "model.layers", "GPT2": "transformer.h", "Bert": "bert.encoder.layer"}
BLOCKS |= {"T5": "decoder.block"}


class Case:
    """A tiny random model, its input, and its own answer with every state and pattern."""

    def __init__(self, name):
        self.name = name
        self.model: Any = tiny_transformers.build(name)
        self.model.set_attn_implementation("eager")
        self.inputs = tiny_transformers.inputs(name)
        self.text = self.inputs.get("decoder_input_ids", self.inputs["input_ids"])
        self.beside = {"source": self.inputs["input_ids"]} if name == "T5" else {}
        with torch.no_grad():
            self.output = self.model(
                **self.inputs, output_attentions=True, output_hidden_states=True
            )
        side = "decoder_" if name == "T5" else ""
        self.states = self.output[f"{side}hidden_states"]
        self.attentions = [*self.output.get("encoder_attentions", ())]
        self.attentions += self.output[f"{side}attentions"]
        self.attentions += self.output.get("cross_attentions", ())

    def head(self, state):
        """The logits that a state gives, by the model's own modules."""
        model = self.model
        if self.name == "Llama":
            return model.lm_head(model.model.norm(state))
        if self.name == "GPT2":
            return model.lm_head(model.transformer.ln_f(state))
        if self.name == "Bert":
            return model.cls(state)
        scaled = model.decoder.final_layer_norm(state)
        tied = model.config.tie_word_embeddings or model.config.scale_decoder_outputs
        return model.lm_head(scaled * (model.model_dim**-0.5 if tied else 1.0))


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    return Case(request.param)


def test_the_patterns_are_those_that_the_model_gives(case):
    records = look(case.model, None, case.text, "*.pattern", "logits", **case.beside)
    assert len(records) == len(case.attentions) + 1
    assert torch.equal(records["logits"], case.output.logits)
    for pattern in case.attentions:
        assert any(torch.equal(x, pattern) for x in records.values())
    assert any("pattern" in line and "1x4x" in line for line in describe(records))
    everything = look(case.model, None, case.text, **case.beside)
    assert len(everything) > 30 and next(iter(everything)) != "logits"
    assert records.head(2).title


def test_edits_change_what_is_seen(case):
    path = f"{BLOCKS[case.name]}.0"
    block = case.model.get_submodule(path)
    norm = next(x for n, x in block.named_modules() if "norm" in n.lower() or "ln_1" in n)
    name = next(n for n, x in case.model.named_modules() if x is norm)
    handle = norm.register_forward_hook(lambda module, args, result: 2 * result)
    with torch.no_grad():
        expected = case.model(**case.inputs).logits
    handle.remove()

    def twice(x):
        return 2 * x

    edited = look(case.model, None, case.text, "logits", edits={name: twice}, **case.beside)
    assert torch.equal(edited["logits"], expected)


def test_the_lens_is_the_head_on_every_state(case):
    lens = logit_lens(
        case.model, None, case.text, positions=[1, -1], track=[7], top=3, **case.beside
    )
    # the states that transformers names: before the first block and behind each; the last is normed
    step = 3 if case.name == "T5" else 2
    depths = [*range(0, len(lens.depths), step)]
    final_logprobs = case.output.logits[0, [1, -1]].log_softmax(-1)
    for depth, state in zip(depths[:-1], case.states[:-1], strict=True):
        with torch.no_grad():
            logits = case.head(state)[0, [1, -1]].log_softmax(-1)
        likely = logits.topk(3)
        assert lens.top[depth] == likely.indices.tolist()
        assert_close(torch.tensor(lens.probability[depth]), likely.values.exp())
        kl = (final_logprobs.exp() * (final_logprobs - logits)).sum(-1)
        assert_close(torch.tensor(lens.kl[depth]), kl, rtol=1e-3, atol=1e-6)
        chances = logits[:, 7].exp()
        assert_close(torch.tensor(lens.tracked[0].probability[depth]), chances)
    assert lens.top[-1] == final_logprobs.topk(3).indices.tolist() and lens.kl[-1] == [0.0, 0.0]
    assert "Each depth is read through" in lens.notes[0]


def test_saliency_is_the_gradient_by_the_embeddings(case):
    result = saliency(
        case.model, None, case.text, token=7, position=4, steps=64, progress=False, **case.beside
    )
    table = case.model.get_input_embeddings().weight.detach()
    side = "decoder_" if case.name == "T5" else ""
    x = table[case.text].requires_grad_()
    inputs = {key: ids for key, ids in case.inputs.items() if key != f"{side}input_ids"}
    logit = case.model(**inputs, **{f"{side}inputs_embeds": x}).logits[0, 4, 7]
    (gradient,) = torch.autograd.grad(logit, x)
    assert result.value == pytest.approx(logit.item(), abs=1e-6)
    norms = torch.tensor([token.norm for token in result.tokens])
    products = torch.tensor([token.product for token in result.tokens])
    assert_close(norms, gradient[0].norm(dim=-1), rtol=1e-4, atol=1e-6)
    assert_close(products, (gradient * x).sum(-1)[0], rtol=1e-3, atol=1e-6)
    assert abs(result.gap) < 0.05 * abs(result.value - result.at_baseline) + 1e-3
    assert len(result.source) == (len(case.inputs["input_ids"][0]) if case.name == "T5" else 0)


def test_the_heads_score_what_their_patterns_score(case):
    result = head_scores(case.model, draws=2, length=8, seed=3)
    draw, expected = generator_from(3), []
    for _ in range(2):
        texts, sources = _texts(tiny_transformers.VOCAB, None, 8, draw)
        name = "decoder_input_ids" if case.name == "T5" else "input_ids"
        beside = {"input_ids": sources} if case.name == "T5" else {}
        with torch.no_grad():
            output = case.model(**beside, **{name: texts}, output_attentions=True)
        key = "decoder_attentions" if case.name == "T5" else "attentions"
        kind = "both" if case.name == "Bert" else "causal"
        expected.append(measure(output[key][1].double(), 8, kind).scores)
    path = BLOCKS[case.name] + ".1"
    heads = [head for head in result.heads if head.path.startswith(path)][:4]
    for name in ("previous", "duplicate", "first", "entropy"):
        mean = torch.stack([scores[name] for scores in expected]).mean(0)
        assert [head.scores[name] for head in heads] == pytest.approx(mean.tolist(), abs=1e-6)
    assert len(result.heads) == 4 * len(case.attentions)


def test_the_size_of_what_a_head_moves():
    case = Case("GPT2")  # one whose matrices are laid the other way round
    result = head_scores(case.model, draws=2, length=8, seed=3)
    block = case.model.transformer.h[1].attn
    draw, expected = generator_from(3), []
    for _ in range(2):
        (text, _), _ = _texts(tiny_transformers.VOCAB, None, 8, draw)
        values: list[Tensor] = []
        handle = block.c_attn.register_forward_hook(lambda m, a, y: values.append(y))  # noqa: B023
        with torch.no_grad():
            pattern = case.model(text[None], output_attentions=True).attentions[1][0]
        handle.remove()
        v = values[0][0, :, 64 + 8 : 64 + 16]  # head 1: 8 wide
        moved = pattern[1] * (v @ block.c_proj.weight[8:16]).norm(dim=-1)
        expected.append(moved.sum(-1).mean())
    (head,) = [x for x in result.heads if x.path == "transformer.h.1.attn" and x.head == 1]
    assert head.scores["norm"] == pytest.approx(
        float(torch.stack(expected).detach().mean()), rel=1e-4
    )


def test_a_patch_is_a_hook_that_puts_the_other_state_in(case):
    corrupted = case.text.clone()
    corrupted[0, 2] = 50
    grid = patch_grid(
        case.model, None, case.text, corrupted, answer=7, wrong=3, parts=["resid", "z"],
        positions=[1, 2, -1], progress=False, **case.beside,
    )  # fmt: skip
    block = case.model.get_submodule(BLOCKS[case.name])[0]
    state = case.states[1]
    key = "decoder_input_ids" if case.name == "T5" else "input_ids"

    def put(module, args, result):
        hidden = result if isinstance(result, Tensor) else result[0]
        hidden = hidden.clone()
        hidden[0, 2] = state[0, 2]
        return hidden if isinstance(result, Tensor) else (hidden, *result[1:])

    handle = block.register_forward_hook(put)
    with torch.no_grad():
        logits = case.model(**{**case.inputs, key: corrupted}).logits[0, -1]
    handle.remove()
    row = 3 if case.name == "T5" else 2
    assert grid["resid"].value[row][1] == pytest.approx(float(logits[7] - logits[3]), abs=1e-5)
    assert grid["resid"].effect[-1][-1] == pytest.approx(1.0, abs=1e-4)
    assert grid["resid"].effect[0] == pytest.approx([0.0, 1.0, 0.0], abs=1e-4)
    assert len(grid["z"].rows()) == len(grid["z"].heads) == 4 * len(case.attentions)
    assert "clean" in grid.scale and grid.text()


def test_a_position_that_the_source_lacks_changes_nothing_in_its_encoder():
    texts, source = ([0, 5, 9, 12, 3], [0, 5, 9, 18, 3]), [4, 6, 20]
    model = tiny_transformers.build("T5")
    grid = patch_grid(model, None, *texts, answer=7, parts="z", source=source, progress=False)["z"]
    encoder, decoder = (
        [row for path, row in zip(grid.paths, grid.effect, strict=True) if path.startswith(side)]
        for side in ("encoder", "decoder")
    )
    assert encoder and all(row == pytest.approx([0.0] * 5) for row in encoder)
    assert any(row[3] != 0 for row in decoder)


def test_the_parts_add_up_to_the_logit(case):
    result = attribute(case.model, None, case.text, token=7, against=3, position=4, **case.beside)
    logits = case.output.logits[0, 4]
    assert result.logit == pytest.approx(float(logits[7] - logits[3]), abs=1e-6)
    assert result.difference < 1e-5
    heads = [part for part in result.parts if part.kind == "head"]
    assert len(heads) == (16 if case.name == "T5" else 8)
    assert {part.index for part in heads} == {0, 1, 2, 3}


def test_a_head_by_hand():
    """Its slice of the output matrix, scaled as the last norm scales, times the token's row."""
    case = Case("Llama")
    inside: list[Tensor] = []
    layer = case.model.model.layers[1].self_attn.o_proj
    handle = layer.register_forward_pre_hook(lambda m, args: inside.append(args[0]))
    with torch.no_grad():
        case.model(**case.inputs, output_hidden_states=True)
    handle.remove()
    records = look(case.model, None, case.text, "model.layers.1.hidden_states")
    x = records["model.layers.1.hidden_states"][0, 4]
    scale = (x.square().mean() + case.model.model.norm.variance_epsilon).rsqrt()
    wrote = layer.weight[:, 16:24] @ inside[0][0, 4, 16:24]
    right = (wrote * scale * case.model.model.norm.weight) @ case.model.lm_head.weight[7]
    result = attribute(case.model, None, case.text, token=7, position=4)
    (part,) = [x for x in result.parts if (x.kind, x.block, x.index) == ("head", 1, 2)]
    assert part.value == pytest.approx(float(right), abs=1e-5)


# --------------------------------------------------------------------------------------- of a text


def words():
    """A tokenizer of ``transformers`` that knows a few words."""
    import tokenizers
    import transformers

    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    names += [
        "she",
        "put",
        "money",
        "in",
        "the",
        "bank",
        "of",
        "a",
        "river",
        "they",
        "had",
        "lunch",
        "on",
        "there",
    ]
    model = tokenizers.models.WordLevel({x: i for i, x in enumerate(names)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    marks = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "unk": "[UNK]"}
    kind: Any = transformers.PreTrainedTokenizerFast
    return kind(tokenizer_object=tokenizer, **{f"{key}_token": mark for key, mark in marks.items()})


def test_a_text_is_read_by_its_tokenizer():
    case, tokenizer = Case("Bert"), words()
    text = "she put money in the [MASK]"
    lens = logit_lens(case.model, tokenizer, text, track=["river"])
    assert lens.pieces[1] == "she" and lens.tracked[0].token == 13
    result = attribute(case.model, tokenizer, text, token="bank")
    assert result.position == 6 and result.piece == "bank"  # the mask token
    owed = saliency(case.model, tokenizer, text, token="bank", baseline="pad", progress=False)
    assert owed.baseline == "[MASK]" and owed.position == 6
    assert [token.piece for token in owed.tokens][:2] == ["[CLS]", "she"]
    steps = predictions(case.model, tokenizer, text, 2)
    logits = case.model(**tokenizer(text, return_tensors="pt")).logits[0]
    best = int(logits[-1, : len(tokenizer)].argmax())
    assert steps[-1]["next"][0]["token"] == best
    with mistake("is 2 tokens for this tokenizer"):
        attribute(case.model, tokenizer, text, token="money bank")


def test_a_word_in_two_contexts_and_the_places_of_a_neuron():
    case, tokenizer = Case("Bert"), words()
    texts = ["she put money in the bank", "they had lunch on the bank of a river"]
    result = word_in_contexts(case.model, tokenizer, "bank", *texts)
    runs = [
        case.model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        for text in texts
    ]
    for depth, (first, second) in enumerate(zip(*(run.hidden_states for run in runs), strict=True)):
        cosine = torch.cosine_similarity(first[0, 6].double(), second[0, 6].double(), dim=0)
        assert result.cosine[2 * depth] == pytest.approx(float(cosine), abs=1e-6)
    assert result.positions == [[6], [6]]
    path = "bert.encoder.layer.1.intermediate"
    (neuron,) = top_activations(case.model, tokenizer, texts, [f"{path}[5]"], top=2, progress=False)
    inside: list[Tensor] = []
    layer = case.model.bert.encoder.layer[1].intermediate
    handle = layer.register_forward_hook(lambda module, args, result: inside.append(result))
    for text in texts:
        case.model(**tokenizer(text, return_tensors="pt"))
    handle.remove()
    expected = [float(x[0, 1:-1, 5].max()) for x in inside]  # special tokens are not counted
    assert sorted(hit.value for hit in neuron.hits) == pytest.approx(sorted(expected), abs=1e-6)
    with mistake("No value of each token"):
        top_activations(case.model, tokenizer, texts, ["bert.nothing[5]"], progress=False)


# ------------------------------------------------------------------------------- no library at all


class Tiny(nn.Module):
    """Token ids in, numbers out; no attention."""

    def __init__(self, residual):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)
        self.layer, self.residual = nn.Linear(16, 16), residual

    def forward(self, ids):
        x = self.embed(ids)
        y = torch.tanh(self.layer(x))
        result: Tensor = self.head(x + y if self.residual else y)
        return result


def test_any_module_that_reads_ids():
    torch.manual_seed(0)
    model = Tiny(True)
    lens = logit_lens(model, None, [5, 3, 8], top=1)
    with torch.no_grad():
        first = model.head(model.embed(torch.tensor([5, 3, 8])))
    assert [cell[0] for cell in lens.top[0]] == first.argmax(-1).tolist()
    result = attribute(model, None, [5, 3, 8], token=4)
    assert result.difference < 1e-6 and {"embedding", "write", "bias"} >= {
        part.kind for part in result.parts
    }
    owed = saliency(model, None, [5, 3, 8], token=4, progress=False)
    assert owed.tokens[0].norm == 0.0 < owed.tokens[2].norm
    grid = patch_grid(model, None, [5, 3, 8], [5, 3, 9], answer=4, parts="resid", progress=False)
    assert grid["resid"].effect[-1][-1] == pytest.approx(1.0)


def test_one_clear_sentence():
    model = Tiny(False)
    with mistake("adds nothing to a residual stream"):
        logit_lens(model, None, [5, 3])
    with mistake("adds nothing to a residual stream"):
        attribute(model, None, [5, 3])
    with mistake("no softmax multiplies values"):
        head_scores(model, draws=2, length=5)
    with mistake("without a tokenizer"):
        look(model, None, "a text")
    with mistake("No value is called"):
        look(model, None, [5, 3], "layers.*")
    with mistake("give edits as"):
        look(model, None, [5, 3], edits=['head_off("a", 1)'])
    with mistake("2 and 3 tokens"):
        patch_grid(model, None, [5, 3], [5, 3, 1], answer=4)
    with mistake("reads two texts"):
        look(Case("T5").model, None, [5, 3])
    with mistake("Only an encoder-decoder"):
        look(model, None, [5, 3], source=[4])
    with mistake('no answer "label"'):
        saliency(model, None, [5, 3], of="label")


class Letters:
    """A tokenizer of letters, as transformers calls one."""

    mask_token = None

    def __call__(self, text, return_tensors=None, **options):
        ids = [3 + ord(letter) % 20 for letter in text]
        return {"input_ids": torch.tensor([ids]) if return_tensors else ids}


def test_a_source_beside_a_text_is_read_by_the_encoder():
    model, reader = Case("T5").model, Letters()
    start = model.config.decoder_start_token_id
    target = [start, *reader("xyzuvw")["input_ids"]]
    for words in ("abc", "xyz"):
        source = reader(words, "pt")["input_ids"]
        expected = model(input_ids=source, decoder_input_ids=torch.tensor([target])).logits
        traced = trace(model, reader, "xyzuvw", source=words)
        assert_close(traced.output.logits, expected, rtol=0, atol=0)
    # the target is longer than its source
    result = attribute(model, None, target, source=source[0].tolist())
    assert result.sum == pytest.approx(result.logit, abs=1e-5)
    with mistake("reads one text"):
        trace(Case("Llama").model, reader, "a", source="b")
