"""Planted features are recovered, which random directions are not; a run of the objective saves what SAELens
reads, goes on bit for bit, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import glassformer
import tiny
from folders import read_json, snapshot
from glassformer import config as c
from glassformer import runs
from glassformer.core.config import run
from glassformer.core.config.objective import Frozen
from glassformer.core.config.optimizer import AdamW
from glassformer.core.training.batches import Batch
from glassformer.formats import dictionaries, store, tuning
from glassformer.sight.fidelity import randomised
from glassformer.tasks.objectives import Features
from mistakes import mistake
from seeding import generator_from
from small_runs import settings

DIM, PLANTED, VOCAB = 16, 24, 512
ADDRESS = "decoder.embed"


def planted():
    """A model whose tokens are each a sum of two or three of PLANTED directions."""
    draw = generator_from(0)
    block = c.Block(c.Attention(1), c.MLP(8))
    cfg = c.Decoder(DIM, 32, c.Embed(VOCAB), c.Stack(1, (block,), c.Rotary()), c.Head())
    model = tiny.model(cfg)
    directions = F.normalize(torch.randn(PLANTED, DIM, generator=draw))
    strength = torch.rand(VOCAB, PLANTED, generator=draw) + 0.5
    present = torch.rand(VOCAB, PLANTED, generator=draw).argsort(1) < 2
    with torch.no_grad():
        model.embed.token.weight.copy_((strength * present) @ directions)
    return model, directions


def batches(seed=1):
    draw = generator_from(seed)
    while True:
        tokens = torch.randint(0, VOCAB, (16, 33), generator=draw)
        yield Batch(tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("activation", ["topk", "jumprelu"])
def test_planted_features_are_recovered(activation):
    model, directions = planted()
    objective = Features(address=ADDRESS, width=32, active=2, activation=activation)
    objective.attach(model, next(batches()), 0)
    tuning.tune(model, Frozen(objective.trains))
    weight = model.embed.token.weight.clone()
    config = run.Train(steps=300, optimizer=AdamW(lr=1e-2, betas=(0.9, 0.99), weight_decay=0.0))
    steps = [*glassformer.train(model, batches(2), objective, config)]
    similarities = [
        (directions @ F.normalize(d.W_dec.detach()).T).max(1).values
        for d in (model.features, randomised(model.features, 7))
    ]
    assert torch.equal(weight, model.embed.token.weight)
    assert (similarities[0] > 0.8).float().mean() > 0.9, similarities[0]
    assert (similarities[1] > 0.8).float().mean() < 0.1
    assert steps[-1].metrics["active"] == pytest.approx(2, abs=0.5)
    assert steps[-1].metrics["unexplained"] < 0.3 * steps[0].metrics["unexplained"]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    runs.run(settings(folder, {}), folder / "base")
    return folder


def small(base, **more):
    target = {f"train.objective.{name}": x for name, x in more.pop("objective", {}).items()}
    return {
        "recipe": None,
        "decoder.depth": None,
        "context": None,
        "data.tokenizer": None,
        "from": str(base / "base"),
        "dtype": None,
        "objective": "Features",
        "train.objective.address": "decoder.blocks.0.resid",
        "train.objective.width": 96,
        "train.objective.active": 8,
        **target,
        **more,
    }


def test_a_run_goes_on_bit_for_bit_and_opens_as_a_model(base):
    runs.run(settings(base, small(base)), base / "whole")
    runs.run(settings(base, small(base, steps=2)), base / "half")
    page = read_json(base / "half/run.json")
    assert page["train"]["tune"] == {"type": "Frozen", "train": ["features.*"]}
    runs.run(settings(base, small(base)), base / "half", resume=True)
    last = "step-000004"
    full_run, half = (snapshot(base / name / last) for name in ("whole", "half"))
    weights = "sae_weights.safetensors"
    assert full_run.keys() == half.keys() >= {weights, "cfg.json", "config.json"}
    dictionary = dictionaries.load_dictionary(base / "whole" / last)
    assert dictionary.width == 96
    model, tokenizer = store.load(base / "whole" / last)
    plain, _ = store.load(base / "base")
    tokens = torch.tensor([tokenizer.encode("the cat saw the a")])
    assert torch.equal(model(tokens).logits, plain(tokens).logits)
    activations = glassformer.look(model, tokenizer, "the cat saw", "features.active")[
        "features.active"
    ]
    assert ((activations > 0).sum(-1) <= 8).all()


def test_a_dictionary_that_stays_behind_is_named(base, capsys):
    runs.run(settings(base, small(base, steps=1)), base / "features")
    begins = {"from": str(base / "features")}
    plain = {name: None for name in small(base) if "objective" in name}
    runs.run(settings(base, {**small(base), **plain, **begins, "steps": 1}), base / "behind")
    assert (
        f"The dictionary of features in {base / 'features'} stays behind."
        in capsys.readouterr().err
    )


def test_a_transcoder_stands_between_two_values(base):
    ffn = {f: f"decoder.blocks.1.ffn.{x}" for f, x in (("address", "in"), ("target", "write"))}
    for activation in ("topk", "jumprelu"):
        out = base / activation
        objective = {**ffn, "activation": activation}
        runs.run(settings(base, small(base, objective=objective)), out)
        dictionary = dictionaries.load_dictionary(out)
        assert (dictionary.address, dictionary.target) == (ffn["address"], ffn["target"])
        assert not dictionary.centered
        assert dictionary.activation == activation


def test_what_does_not_fit_is_refused(base):
    cases = [
        ({"train.objective.address": ""}, "name it"),
        ({"train.objective.address": "decoder.blocks.0.none"}, "no value of each token"),
        ({"train.objective.active": 96}, "of 96 features"),
        ({"tune": "LoRA"}, "leave train.tune out"),
        ({"label_smoothing": 0.1}, "label_smoothing"),
        ({"from": None, "recipe": "glass/200k"}, "changes a model that was trained"),
    ]
    for more, sentence in cases:
        with mistake(sentence):
            runs.run(settings(base, {**small(base), **more}), base / "refused")
