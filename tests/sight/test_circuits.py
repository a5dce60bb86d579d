"""Edges into a node of a circuit add up to it, a node is what its readers take from it, and what the
circuit keeps of the answer is what the model gives where all else is held.

The slow test trains a model of two blocks on letters that come twice, and finds its induction circuit.
"""

from __future__ import annotations

import importlib.util
import json
import math
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import glassformer
import tiny
from by_hand import made_by_hand
from glassformer import config as c
from glassformer.cli import main
from glassformer.core.nn import Tape, build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.sight import circuit, circuits, edits, head_scores, look
from glassformer.sight.inputs import token_ids
from mistakes import mistake
from seeding import generator_from
from tiny import inputs_of

ROOT = Path(__file__).parents[2]
STACKED = {
    name: cfg
    for name, cfg in tiny.ALL.items()
    if not cfg.recurrent and name not in ("reader", "pooled")
}


QUICK = {"gpt2", "llama", "gemma2", "mixtral", "bert", "t5", "deepseek_v3"}
"""One family of each kind; ``make test-all`` has them all."""


def model_of(name):
    """In fp64, no bias zero and no gain one."""
    model = tiny.model(STACKED[name]).double()
    draw = generator_from(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


def adds_up(result):
    """Edges into each node, and out of it."""
    size = max(abs(node.value) for node in result.nodes)
    assert result.difference < 1e-6 * size
    for node in result.nodes[1:]:
        taken = math.fsum(edge.value for edge in result.edges if edge.writer == node.address)
        assert node.kind == "scores" or node.value == pytest.approx(taken, abs=1e-9 * size)
    return result


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STACKED],
)
def test_edges_add_up_in_every_family(name, monkeypatch):
    monkeypatch.setattr(circuits, "SMALL", 0.0)  # every edge, however small
    model = model_of(name)
    result = adds_up(
        circuit(model, None, **inputs_of(model), answer=1, instead=0, least=0.05, draws=1)
    )
    kinds = {node.kind for node in result.nodes}
    assert len(result.nodes) > 3 and kinds & {"head", "mixer", "mlp", "expert", "token"}
    run = result.faithfulness
    assert run.model == pytest.approx(result.nodes[0].value, abs=1e-9)
    assert run.share(run.model) == 1 and run.share(run.nothing) == 0
    if name in ("llama", "gpt2", "mixtral", "gemma2", "t5", "deepseek_v3"):
        assert "scores" in kinds


def test_where_a_head_looks_adds_up_beyond_even_weights():
    """Masked keys and a sink are no keys; the pattern's worth less the mean of all keys, the sink
    among them."""
    draw = generator_from(0)
    scores = 4 * torch.randn(2, 5, 7, dtype=torch.float64, generator=draw)
    scores[1, 3, 4:6] = -math.inf
    values = torch.randn(2, 6, 3, dtype=torch.float64, generator=draw)
    gradient = torch.randn(3, dtype=torch.float64, generator=draw)
    pattern = scores.softmax(-1)[..., :6]
    z = pattern @ values
    look = circuits._Look("scores", scores, pattern, values)
    direction = look.direction((1, 3), z[1, 3], gradient)
    assert direction is not None and direction[4:6].abs().max() == 0
    finite = [0, 1, 2, 3, 6]
    total = direction[finite] @ scores[1, 3, finite]
    even = (values[1, :4] @ gradient).sum() / 5
    assert_close(total, z[1, 3] @ gradient - even, rtol=0, atol=1e-12)
    assert abs(float(direction.sum())) < 1e-12  # a number added to all scores changes nothing
    assert look.direction((1, 3), 2 * z[1, 3], gradient) is None  # no pattern times values


def held_by_hand(model, result, tokens, keeps):
    """The answer with the heads' and MLPs' rows held at their means where ``keeps`` says."""
    addresses = {node.address for node in result.nodes}
    tape = Tape("*.attn.z", "*.ffn.hidden")
    model(tokens, tape=tape)
    edits = {}
    for path, x in tape.records.items():
        side = 2 if path.endswith("z") else 1
        means = x.mean(side, keepdim=True).expand_as(x).clone()
        for place in torch.cartesian_prod(*map(torch.arange, x.shape[1 : side + 1])).reshape(
            -1, side
        ):
            at = tuple(place.tolist())
            if keeps == (f"{path}[{','.join(map(str, at))}]" in addresses):
                means[(0, *at)] = x[(0, *at)]

        def edit(_, y, path=path, means=means):
            unchanged = means == tape.records[path]
            return torch.where(unchanged, y, means)

        edits[path] = edit
    with torch.no_grad():
        logits = model(tokens, tape=Tape(edits=edits)).logits[0, -1]
    return float(logits[1] - logits[0])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_is_kept_is_what_the_model_gives(name):
    model = model_of(name)
    tokens = inputs_of(model)["text"]
    result = circuit(model, None, tokens, answer=1, instead=0, least=0.1, draws=3)
    run = result.faithfulness
    assert run.circuit == pytest.approx(held_by_hand(model, result, tokens, True), abs=1e-9)
    assert run.without == pytest.approx(held_by_hand(model, result, tokens, False), abs=1e-9)
    with torch.no_grad():
        logits = model(tokens).logits[0, -1]
    assert run.model == pytest.approx(float(logits[1] - logits[0]), abs=1e-9)
    assert len(run.random) == 3 and len(set(run.random)) > 1
    again = circuit(model, None, tokens, answer=1, instead=0, least=0.1, draws=3, seed=1)
    assert again.faithfulness.random != run.random
    assert again.faithfulness.circuit == run.circuit


def test_a_corrupted_text_holds_what_is_left_out():
    model = model_of("llama")
    tokens = inputs_of(model)["text"]
    corrupted = (tokens + 1) % tiny.VOCAB
    result = circuit(model, None, tokens, answer=1, corrupted=corrupted, least=0.1, draws=0)
    tape = Tape("*.attn.z", "*.ffn.hidden")
    model(corrupted, tape=tape)
    with torch.no_grad():
        edits = {path: (lambda _, x, y=y: y) for path, y in tape.records.items()}
        logit = model(tokens, tape=Tape(edits=edits)).logits[0, -1, 1]
    assert result.faithfulness.nothing == pytest.approx(float(logit), abs=1e-9)
    assert result.faithfulness.held_at == "the corrupted text's values"


def test_a_corrupted_source_holds_what_is_left_out():
    model = model_of("t5")
    inputs = inputs_of(model)
    sources = inputs["source"], (inputs["source"] + 1) % tiny.VOCAB
    args = {"answer": 1, "instead": 0, "least": 0.1, "draws": 0}
    result = circuit(model, None, inputs["text"], source=sources, **args)
    tape = Tape("*.attn.z", "*.cross.z", "*.ffn.hidden")
    with torch.no_grad():
        model(inputs["text"], sources[1], tape=tape)
        edits = {path: (lambda _, x, y=y: y) for path, y in tape.records.items()}
        row = model(inputs["text"], sources[0], tape=Tape(edits=edits)).logits[0, -1]
    run = result.faithfulness
    assert run.nothing == pytest.approx(float(row[1] - row[0]), abs=1e-9) != run.model
    with mistake("source holds 3 texts"):
        circuit(model, None, inputs["text"], source=(*sources, sources[0]), **args)


def test_where_nodes_stand():
    for name in ("t5", "mixtral"):
        model = model_of(name)
        result = circuit(model, None, **inputs_of(model), answer=1, least=0.02, draws=0)
        for node in result.nodes:
            numbers = [int(x) for x in re.findall(r"\d+", node.address.partition("[")[2])]
            block = re.search(r"blocks\.(\d+)\.", node.address)
            assert node.block == (None if block is None else int(block[1]))
            if node.kind in ("head", "cross head", "scores"):
                assert node.position == numbers[1], node
            elif node.kind == "answer":
                assert node.position == numbers[1] == len(result.words) - 1
            else:
                assert node.position == (None if node.kind == "bias" else numbers[0]), node
        assert bool(result.source_words) == (name == "t5")
        assert {"t5": "cross head", "mixtral": "expert"}[name] in {x.kind for x in result.nodes}


def test_two_heads_made_by_hand():
    """Token 9 came after token 5 the last time; the other text has 11 in its place."""
    tokens = torch.tensor([[3, 5, 9, 7, 2, 8, 5]])
    corrupted = torch.tensor([[3, 6, 11, 7, 2, 8, 5]])
    args = {"answer": 9, "instead": 11, "corrupted": corrupted, "draws": 5}
    result = circuit(made_by_hand(), None, tokens, **args)
    first, second = "decoder.blocks.0.attn", "decoder.blocks.1.attn"
    carries, looks = result[f"{second}.z[0,6]"], result[f"{second}.scores[0,6]"]
    assert carries.value == pytest.approx(result.nodes[0].value, rel=1e-4)
    assert looks.head == carries.address and looks.text.startswith("looks at 2:#9, 1.00: induction")
    (largest, second_largest, *_) = result.into(looks.address)
    assert {largest.writer, second_largest.writer} == {f"{first}.z[0,2]", "embed.token[6]"}
    assert largest.value == pytest.approx(second_largest.value)  # a query and a key
    assert "the previous token" in result[f"{first}.scores[0,2]"].text
    assert result.into(f"{first}.z[0,2]")[0].writer == "embed.token[1]"
    run = result.faithfulness
    assert run.share(run.circuit) == pytest.approx(1, abs=1e-3)
    assert run.share(run.without) == pytest.approx(0, abs=1e-3)


def test_greedy_takes_out_what_does_not_count():
    model = model_of("llama")
    args = {**inputs_of(model), "answer": 1, "instead": 0, "least": 0.1, "draws": 0}
    full, few = circuit(model, None, **args), circuit(model, None, **args, greedy=True)
    addresses = {node.address for node in full.nodes}
    assert {node.address for node in few.nodes} < addresses
    assert few.faithfulness.nodes < full.faithfulness.nodes
    change = few.faithfulness.circuit - full.faithfulness.circuit
    assert abs(change) < 0.1 * abs(full.nodes[0].value)


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_single_neurons(name):
    model = model_of(name)
    args = {**inputs_of(model), "answer": 1, "least": 0.03, "draws": 1}
    result = circuit(model, None, **args, neurons=True)
    neurons = [node for node in result.nodes if node.kind in ("neuron", "expert")]
    sides = {"gpt2": 2, "mixtral": 3}[name]
    assert neurons and all(node.address.count(",") + 1 == sides for node in neurons)
    by_component = circuit(model, None, **args)
    assert {"gpt2": "mlp", "mixtral": "expert"}[name] in {node.kind for node in by_component.nodes}
    experts = [node for node in by_component.nodes if node.kind == "expert"]
    assert all("expert" in node.text and " at " in node.text for node in experts)


@pytest.mark.parametrize("name", ["Llama", "GPT2", "Mixtral", "Bert"])
def test_models_of_transformers(name, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from tiny_transformers import SIZES

    monkeypatch.setattr(circuits, "SMALL", 0.0)
    kind = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    sizes = SIZES | ({"n_embd": 32, "n_layer": 2, "n_head": 4} if name == "GPT2" else {})
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, kind)._from_config(config, experts_implementation="eager")
    draw = generator_from(0)
    with torch.no_grad():
        for weight in model.eval().double().parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    tokens = [5, 3, 8, 61, 7, 22]
    result = circuit(model, None, tokens, answer=7, least=0.05, draws=9)
    size = max(abs(node.value) for node in result.nodes)
    assert result.difference < 1e-5 * size  # its norms compute in float32
    kinds = {node.kind for node in result.nodes}
    assert {"head", "scores", "write", "embedding"} <= kinds
    run = result.faithfulness
    assert run.model == pytest.approx(result.nodes[0].value, rel=1e-6)
    assert len({run.model, run.circuit, run.nothing, *run.random}) > 3


def test_mistakes(monkeypatch):
    model = model_of("llama")
    tokens = inputs_of(model)["text"]
    with monkeypatch.context() as patch:
        patch.setattr(circuits, "MOST_EDGES", 50)
        with mistake("more than 50 edges; give a larger least."):
            circuit(model, None, tokens, least=5e-324, draws=0)
    with mistake("least is 0; give a share above 0, up to 1."):
        circuit(model, None, tokens, least=0)
    with mistake("give equally many"):
        circuit(model, None, tokens, corrupted=tokens[:, 1:])
    with mistake("no node of this circuit"):
        circuit(model, None, tokens, draws=0)["decoder"]


def test_as_a_figure_and_a_file(tmp_path):
    model = model_of("llama")
    result = circuit(model, None, **inputs_of(model), answer=1, draws=2)
    html = result._repr_html_()
    assert "random circuits" in html and result.nodes[1].address in html
    rows = result.save(tmp_path / "circuit.csv").read_text().splitlines()
    assert rows[0] == "writer,reader,value" and len(rows) == 1 + len(result.edges)
    record = json.loads(json.dumps(result.to_dict()))
    assert record["nodes"][1]["address"] == result.nodes[1].address
    assert record["shares"]["circuit"] == result.faithfulness.share(result.faithfulness.circuit)
    assert str(result).splitlines()[0] == circuits.NOTE


def test_a_model_that_answers_as_no_node_does_keeps_no_share():
    model = model_of("llama")
    result = circuit(model, None, **inputs_of(model), answer=1, draws=2)
    run = replace(result.faithfulness, model=result.faithfulness.nothing)
    printed = str(replace(result, faithfulness=run)).splitlines()
    measured = next(line for line in printed if line.startswith("the model "))
    assert measured.endswith(" -") and "nan" not in " ".join(printed)


def french():
    """benchmarks/french.py as a module, and the English words of each French one."""
    spec = importlib.util.spec_from_file_location("french", ROOT / "benchmarks/french.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    english = defaultdict(set)
    for english_word, french_word, _ in module.rows(
        f"{module.BEINGS}, {module.THINGS}, {module.PLACES}"
    ):
        english[french_word].add(english_word)
    kinds = (module.BEFORE, module.AFTER, module.FEELINGS, module.OF_BEINGS, module.OF_PLACES)
    for english_word, *forms in module.rows(", ".join(kinds)):
        for form in forms:
            english[form].add(english_word)
    for stem, third, *forms in module.rows(f"{module.ALONE}, {module.WITH_OBJECT}"):
        for form in forms:
            english[form] |= {stem, third}
    return module, english


def test_the_alignment_heads_of_the_translator():
    """The figures of docs/sight.md: how often a head's largest weight is on the word that is being
    translated, and what is left of the translations without heads."""
    page = (ROOT / "docs/sight.md").read_text(encoding="utf-8")
    section = page[page.index("### A translation") : page.index("### The circuit on the page")]
    model, tokenizer = glassformer.load("tiny-translator", dtype=torch.float32)
    module, english = french()
    sentences = module.Sentences(12345)
    pairs = [sentences.draw() for _ in range(60)]
    hits, even = defaultdict(list), []
    for source, target in pairs:
        patterns = look(model, tokenizer, target, "*.cross.pattern", source=source)
        for path, pattern in patterns.items():
            words = [word.strip("·.") for word in patterns.sides(path)[1]]
            for at, word in enumerate(patterns.words[1:]):
                places = [n for n, x in enumerate(words) if x in english[word.strip("·.")]]
                if len(places) == 1:
                    even.append(1 / len(words))
                    for head, row in enumerate(pattern[0, :, at]):
                        hits[path, head].append(int(row.argmax()) == places[0])
    assert f"{len(even) // 2} words" in section
    for block in range(2):
        path = f"decoder.blocks.{block}.cross"
        row = [sum(x) / len(x) for (name, _), x in hits.items() if name == f"{path}.pattern"]
        assert f"| `{path}` | {' | '.join(f'{share:.0%}' for share in row)} |" in section
    assert f"would have {sum(even) / len(even):.0%}" in section

    def right(path, heads):
        count = 0
        changes = [edits.head_off(path, head) for head in heads]
        for source, target in pairs:
            token_rows = (token_ids(model, tokenizer, x, x == target) for x in (target, source))
            ids, source_ids, hooks = edits.apply(changes, model, *token_rows, tokenizer)
            with torch.no_grad():
                logits = model(ids, source_ids, tape=Tape(edits=hooks)).logits[0, :-1]
            count += bool((logits.argmax(-1) == ids[0, 1:]).all())
        return count

    for name in ("attn", "cross"):
        for block in range(2):
            path = f"decoder.blocks.{block}.{name}"
            assert f"| all four of `{path}` | {right(path, range(4))} |" in section


def copying(model, tokenizer, *lines):
    """The share of letters of second copies that are predicted, with edits."""
    draw, hits = random.Random(1), []
    for _ in range(40):
        letters = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=16))
        ids = torch.tensor([tokenizer.encode(f"{letters} {letters}")])
        changed, _, hooks = edits.apply(list(lines), model, ids, None, tokenizer)
        with torch.no_grad():
            likeliest = model(changed, tape=Tape(edits=hooks)).logits[0, 19:-1].argmax(-1)
        hits.append((likeliest == ids[0, 20:]).double().mean())
    return float(torch.stack(hits).mean())


@pytest.mark.slow
def test_the_two_heads_of_induction_are_found(tmp_path, monkeypatch):
    """In a model that runs/induction.toml trains: heads' scores on random tokens name the two heads;
    the circuit of one text has them, with the edge between; off, they copy no more."""
    draw = random.Random(0)
    with (tmp_path / "repeats.txt").open("w") as file:
        for _ in range(20_000):
            length = draw.randint(8, 24)
            line = "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=length))
            print(line, line, file=file)
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(ROOT / "runs/induction.toml"), "--out", "induction"]) == 0
    model, tokenizer = glassformer.load("induction")
    heads = {
        name: head_scores(model, tokenizer).sorted(name).heads[0]
        for name in ("induction", "previous")
    }
    induction, previous = (
        f"{head.path}.z[{head.head},{at}]"
        for head, at in ((heads["induction"], 12), (heads["previous"], 4))
    )
    args = {"answer": "n", "instead": "m", "corrupted": "zyujmlfs zyuj", "least": 0.1}
    result = circuit(model, tokenizer, "qxvbnwkd qxvb", **args, greedy=True)
    looks = induction.replace(".z[", ".scores[")
    assert result[looks].head == induction and result[looks].text.endswith(": induction")
    assert result.into(looks)[0].writer == previous
    assert "the previous token" in result[previous.replace(".z[", ".scores[")].text
    assert result.into(previous)[0].writer == "embed.token[3]"
    run = result.faithfulness
    assert run.share(run.circuit) > 0.7 and run.share(run.without) < 0.2
    assert max(map(run.share, run.random)) < 0.5 < run.share(run.circuit)
    off = [f'head_off("{head.path}", {head.head})' for head in heads.values()]
    assert copying(model, tokenizer) > 0.8
    assert copying(model, tokenizer, *off) < 0.1


def test_the_command(tmp_path, terminal):
    model = build_model(replace(tiny.DECODERS["llama"], embed=c.Embed(300)), seed=1)
    store.save(model, tmp_path / "m", train_tokenizer("byte", []), layout="glassformer")
    lines = terminal(f"circuit {tmp_path}/m abcab --answer c --corrupted xyzxy --draws 3")
    assert lines.splitlines()[1].startswith("head.proj[0,")
    assert "3 random circuits" in lines and terminal.notes.strip() == circuits.NOTE
    record = terminal.json(f"circuit {tmp_path}/m abcab --answer c --instead d --greedy --draws 0")
    assert record["faithfulness"]["random"] == [] and record["answer"].startswith("logit of c less")
