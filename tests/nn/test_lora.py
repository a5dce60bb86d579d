"""Models changed a little: what trains, what is kept, PEFT's layout, merged and back bit for bit, averages."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from glassformer import cli, config, training
from glassformer.checkpoints import Checkpoint, adapters, resolve, store
from glassformer.config import objective as objectives
from glassformer.config import run
from glassformer.errors import UserError
from glassformer.nn import build_model, lora
from glassformer.training import checkpoint, hooks
from glassformer.training.optimizer import Optimizer

LORA = objectives.LoRA(rank=3, alpha=6.0, paths=("*.attn.q", "*.attn.v"))


def moved(shape, how=LORA, seed=1):
    """A model with a change beside it that says something."""
    model = build_model(shape, seed=seed).eval()
    lora.tune(model, how)
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for _, weight in lora.trained(model):
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(tiny.tokens()).logits


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_change_starts_as_none_merges_and_goes_back_bit_for_bit(name):
    plain = build_model(tiny.DECODERS[name], seed=1).eval()
    model = build_model(tiny.DECODERS[name], seed=1).eval()
    lora.tune(model, LORA)
    assert torch.equal(logits(plain), logits(model))
    model = moved(tiny.DECODERS[name])
    beside = logits(model)
    assert not torch.allclose(beside, logits(plain), atol=1e-2)
    for layer in lora.adapted(model).values():
        layer.merge()
    torch.testing.assert_close(logits(model), beside, rtol=1e-5, atol=1e-5)
    for layer in lora.adapted(model).values():
        layer.unmerge()
    assert torch.equal(logits(model), beside)
    mine = dict(plain.named_parameters())
    assert all(torch.equal(weight, mine[n]) for n, weight in model.named_parameters() if n in mine)
    lora.merge_and_unload(model)
    assert not lora.adapted(model) and [n for n, _ in model.named_parameters()] == list(mine)
    torch.testing.assert_close(logits(model), beside, rtol=1e-5, atol=1e-5)


def test_a_generation_before_does_not_hide_the_change():
    from glassformer import generation

    model = build_model(tiny.DECODERS["llama"], seed=1).eval()
    generation.generate(model, None, [[1, 2, 3]], max_new=4, temperature=0.0).run()  # lays packed copies
    changed = moved(tiny.DECODERS["llama"])
    lora.tune(model, LORA)
    model.load_state_dict(changed.state_dict())
    told = generation.generate(model, None, [[1, 2, 3]], max_new=12, temperature=0.0).run().rows[0].tokens
    lora.merge_and_unload(changed)
    assert told == generation.generate(changed, None, [[1, 2, 3]], max_new=12, temperature=0.0).run().rows[0].tokens


def test_the_optimizer_sees_only_what_trains():
    model = build_model(tiny.DECODERS["llama"], seed=1)
    lora.tune(model, LORA)
    names = set(Optimizer(model, run.AdamW()).parameters)
    assert names == {f"decoder.blocks.{i}.attn.{x}.{part}" for i in (0, 1) for x in "qv" for part in ("down", "up")}
    model = build_model(tiny.bert(), seed=1)
    lora.tune(model, objectives.Frozen(train=("pool.*",)), new=["head.norm.bias"])
    assert set(Optimizer(model, run.Muon()).parameters) == {
        "head.norm.bias",
        *(n for n, _ in model.named_parameters() if n.startswith("pool.")),
    }


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (objectives.LoRA(paths=("*.attn.x",)), r"LoRA.paths \*.attn.x names no linear layer.*such as decoder.blocks.0"),
        (objectives.Frozen(train=("nose.*",)), r"Frozen.train nose.\* names no weight.*such as embed.token.weight"),
    ],
)
def test_patterns_that_name_nothing(how, said):
    with pytest.raises(UserError, match=said):
        lora.tune(build_model(tiny.DECODERS["llama"], seed=1), how)


# ------------------------------------------------------------------------------------ PEFT's layout


@pytest.mark.parametrize("name", ["llama", "gpt2", "alibi", "bert"])
def test_an_adapter_goes_out_and_comes_back(name, tmp_path):
    shape = tiny.ALL[name]
    base = build_model(shape, seed=1)
    layout = None if name != "alibi" else "glassformer"
    store.save(base, tmp_path / "base", layout=layout)
    model = moved(shape)
    store.save(model, tmp_path / "adapter", base=str(tmp_path / "base"))
    loaded, _ = store.load(tmp_path / "adapter")
    torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-5, atol=1e-5)
    assert all(weight.requires_grad for weight in loaded.parameters())
    again = build_model(shape, seed=1).eval()
    adapters.attach(again, tmp_path / "adapter")
    mine, theirs = dict(model.named_parameters()), dict(again.named_parameters())
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
    (tmp_path / "adapter" / "config.json").unlink()  # as PEFT itself leaves it
    torch.testing.assert_close(logits(store.load(tmp_path / "adapter")[0]), logits(model), rtol=1e-5, atol=1e-5)


def test_names_and_numbers_are_pefts(tmp_path):
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base="org/base")
    page = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    wanted = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 3, "lora_alpha": 6, "bias": "none"}
    assert wanted.items() <= page.items() and page["target_modules"] == ["q_proj", "v_proj"]
    assert page["base_model_name_or_path"] == "org/base" and page["fan_in_fan_out"] is False
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    one = "base_model.model.model.layers.1.self_attn.v_proj"
    assert tensors[f"{one}.lora_A.weight"].shape == (3, 32) and tensors[f"{one}.lora_B.weight"].shape == (16, 3)
    store.save(moved(tiny.DECODERS["gpt2"]), tmp_path / "b", base="org/base")
    page = json.loads((tmp_path / "b" / "adapter_config.json").read_text())
    assert (
        page["target_modules"] == ["c_attn"] and page["fan_in_fan_out"] and (page["r"], page["lora_alpha"]) == (6, 12)
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_peft_gives_the_same_logits(name, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    store.save(build_model(tiny.DECODERS[name], seed=1), tmp_path / "base")
    model = moved(tiny.DECODERS[name])
    store.save(model, tmp_path / "adapter", base=str(tmp_path / "base"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tiny.tokens()).logits, logits(model), rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "back")
    torch.testing.assert_close(logits(store.load(tmp_path / "back")[0]), logits(model), rtol=1e-5, atol=1e-5)


def test_adapters_that_cannot_be_read(tmp_path):
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base=str(tmp_path / "base"))
    page = tmp_path / "a" / "adapter_config.json"
    right = page.read_text()
    for key, value in (("use_dora", True), ("peft_type", "IA3"), ("bias", "all")):
        page.write_text(json.dumps({**json.loads(right), key: value}))
        with pytest.raises(UserError, match=f'says "{key}"'):
            store.load(tmp_path / "a")
    page.write_text(right)
    tensors = load_file(tmp_path / "a" / "adapter_model.safetensors")
    save_file({**tensors, "base_model.model.nose.weight": torch.ones(1)}, tmp_path / "a" / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"changes nose.weight, which its base does not have"):
        store.load(tmp_path / "a")
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"holds only what was changed in .*base.*There is no folder"):
        store.load(tmp_path / "a")


@pytest.fixture
def peft(tmp_path):
    """A base and an adapter of rank 3 for it; changed(page, tensors) gives the logits with those changes."""
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    store.save(moved(tiny.DECODERS["llama"]), tmp_path / "a", base=str(tmp_path / "base"))
    (tmp_path / "a" / "config.json").unlink()
    page, file = tmp_path / "a" / adapters.PAGE, tmp_path / "a" / adapters.TENSORS
    right, tensors = json.loads(page.read_text()), load_file(file)

    def changed(settings, others=None):
        page.write_text(json.dumps({**right, **settings}))
        save_file({**tensors, **(others or {})}, file)
        return logits(store.load(tmp_path / "a")[0])

    changed.tensors, changed.file = tensors, file
    return changed


SETTINGS = {
    "lora_bias": True,
    "layer_replication": [[0, 2], [1, 2]],
    "use_qalora": True,
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "alora_invocation_tokens": [3],
    "init_lora_weights": "pissa",
    "revision": "a1b2c3",
    "use_rslora": "no",
    "alpha_pattern": "q_proj",
    "rank_pattern": {"q_proj": "three"},
    "lora_alpha": "6",
    "r": True,
    "target_modules": [["q_proj"]],
    "some_setting_of_tomorrow": {"on": 1},
}


@pytest.mark.parametrize("key", SETTINGS)
def test_settings_that_are_not_done_are_refused_by_name(key, peft):
    with pytest.raises(UserError, match=f'"{key}"'):
        peft({key: SETTINGS[key]})


Q = "model.layers.{}.self_attn.q_proj"
PATTERNS = [  # alpha_pattern, and the alpha of q in the first and in the second layer, as PEFT's get_pattern_key has it
    ({}, 6, 6),
    ({"q_proj": 12}, 12, 12),
    ({"model.layers.1.self_attn.q_proj": 12, "q_proj": 3}, 3, 12),
    ({"q_proj": 3, "model.layers.1.self_attn.q_proj": 12}, 3, 3),
    ({r"layers\.(0|7)\..*q_proj": 12}, 12, 6),
    ({"[qk]_proj": 12}, 12, 12),
    ({"_proj": 12, "proj": 12, "q_pro": 12}, 6, 6),
]


@pytest.mark.parametrize(("pattern", "first", "second"), PATTERNS)
def test_patterns_of_alpha_match_as_in_peft(pattern, first, second, peft):
    ours = peft({"alpha_pattern": pattern})
    scaled = {}
    for layer, alpha in enumerate((first, second)):
        name = f"base_model.model.{Q.format(layer)}.lora_B.weight"
        scaled[name] = peft.tensors[name] * (alpha / 6)
    torch.testing.assert_close(ours, peft({}, scaled), rtol=1e-5, atol=1e-5)


def test_rank_stabilised_and_what_targets_the_layers(peft):
    plain = peft({})
    torch.testing.assert_close(peft({"use_rslora": True, "lora_alpha": 6 / 3**0.5}), plain, rtol=1e-5, atol=1e-5)
    for settings in (
        {"layers_to_transform": [0, 1]},
        {"layers_to_transform": [1, 0], "layers_pattern": "layers"},
        {"target_modules": r".*\.[qv]_proj"},
        {"target_modules": "all-linear"},
        {"rank_pattern": {"[qv]_proj": 3}, "r": 8},
    ):
        assert torch.equal(peft(settings), plain)
    for settings in (
        {"layers_to_transform": [1]},
        {"layers_to_transform": 0},
        {"layers_to_transform": [0, 1], "layers_pattern": "blocks"},
        {"target_modules": ["q_proj"]},
        {"target_modules": r".*\.q_proj"},
        {"exclude_modules": ["v_proj"]},
    ):
        with pytest.raises(UserError, match=r"is not one that adapter_config\.json targets"):
            peft(settings)
    with pytest.raises(UserError, match=r"has rank 3 and adapter_config\.json says 8"):
        peft({"r": 8})
    for pattern, said in (("(a+)+b", "too involved"), (".*.*.*.*", "too involved"), ("(", "not a pattern")):
        with pytest.raises(UserError, match=said):
            peft({"alpha_pattern": {pattern: 1}})


@pytest.mark.parametrize(
    ("down", "up"),
    [
        ((0, 32), (32, 0)),
        ((3, 32), (32, 4)),
        ((96,), (32, 3)),
        ((3, 32), (96,)),
        ((3, 32), (16, 3)),
        ((3, 30), (32, 3)),
    ],
    ids=str,
)
def test_halves_that_do_not_fit(down, up, peft):
    name = f"base_model.model.{Q.format(0)}.lora_"
    with pytest.raises(UserError, match=r"q_proj is \[.*|attn.q.down of the shape"):
        peft({}, {f"{name}A.weight": torch.ones(down), f"{name}B.weight": torch.ones(up)})


@pytest.mark.parametrize("half", "AB")
def test_a_missing_half_and_one_that_is_no_number(half, peft):
    name = f"base_model.model.{Q.format(0)}.lora_{half}.weight"
    broken = peft.tensors[name].clone()
    broken[0, 0] = float("nan")
    with pytest.raises(UserError, match="holds NaN or infinite numbers"):
        peft({}, {name: broken})
    del peft.tensors[name]
    with pytest.raises(UserError, match="has only one of lora_A and lora_B"):
        peft({})


@pytest.mark.parametrize("page", ["config.json", adapters.PAGE])
def test_a_change_of_itself_is_no_model(page, tmp_path):
    store.save(build_model(tiny.DECODERS["llama"], seed=1), tmp_path / "base")
    for name, base in (("a", "b"), ("b", "c"), ("c", "b"), ("d", "d")):
        store.save(moved(tiny.DECODERS["llama"]), tmp_path / name, base=str(tmp_path / base))
        if page != "config.json":
            (tmp_path / name / "config.json").unlink()
    for name in "abcd":
        for act in (store.load, Checkpoint.open):
            if act is store.load or page != "config.json":
                with pytest.raises(UserError, match=r"is itself a change of"):
                    act(tmp_path / name)


# ------------------------------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A trained model, as a base, with its corpus and a table of labels."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "text.txt").write_text("".join(f"{i} times {i} is {i * i}.\n" for i in range(300)))
    rows = "".join(f"{i} times {i}\t{'odd' if i % 2 else 'even'}\n" for i in range(80))
    (folder / "labels.tsv").write_text("text\tlabel\n" + rows)
    small = {"recipe": "glass/1m", "dim": 16, "decoder.depth": 2, "decoder.pattern.attention.heads": 2, "context": 32}
    how = run.Train(steps=6, batch=4, dtype="float32", save_every=2, keep=3, tensorboard=False)
    training.run(run.Run(small, run.Data(str(folder / "text.txt"), tokenizer="char"), how), folder / "base")
    return folder


def changed(home, tune, objective=None, **rest):
    objective = objective or objectives.Causal()
    data = run.Data(str(home / "text.txt"))
    if isinstance(objective, objectives.Classify):
        data = run.Examples(str(home / "labels.tsv"))
    how = run.Train(
        objective,
        tune,
        steps=8,
        batch=4,
        dtype="float32",
        evaluate_every=4,
        save_every=4,
        keep=3,
        tensorboard=False,
        optimizer=run.AdamW(1e-2),
        **rest,
    )
    return run.Run({"from": str(home / "base"), "decoder.dropout": 0.1}, data, how)


TUNES = {
    "lora": (objectives.LoRA(rank=2, dropout=0.1), None),
    "lora, labels": (objectives.LoRA(rank=2), objectives.Classify()),
    "frozen": (objectives.Frozen(train=("decoder.blocks.1.*",)), None),
    "frozen, labels": (objectives.Frozen(), objectives.Classify()),
}


@pytest.mark.parametrize("name", TUNES)
def test_a_tuned_run_is_resumed_bit_for_bit_and_small(name, home, tmp_path, monkeypatch, capfd):
    settings = changed(home, *TUNES[name])
    training.run(settings, tmp_path / "whole")
    said = capfd.readouterr().err
    assert "weights; the others stay as they are" in said
    assert ("has no weights for pool.proj: drawn anew" in said) == ("labels" in name)
    first = training.launch.Log.__call__
    monkeypatch.setattr(
        training.launch.Log, "__call__", lambda self, step: first(self, step) or (step.index == 6 and 1 / 0)
    )
    with pytest.raises(ZeroDivisionError):
        training.run(settings, tmp_path / "cut")
    monkeypatch.undo()
    assert training.run(settings, tmp_path / "cut", resume=True).step == 8
    files = [
        sorted((p.name, p.read_bytes()) for p in (tmp_path / f / "step-000008").iterdir() if p.name != "state.json")
        for f in ("whole", "cut")
    ]
    assert files[0] == files[1]
    held = {p.name: p.stat().st_size for p in (tmp_path / "whole" / "step-000008").iterdir()}
    base = resolve.resolve(home / "base")
    assert ("adapter_model.safetensors" in held) == ("lora" in name)
    size = held.get("adapter_model.safetensors", 0) + held.get("model.safetensors", 0)
    assert size < 0.5 * (base / "model.safetensors").stat().st_size
    model, tokenizer = store.load(tmp_path / "whole")
    assert tokenizer is not None and not lora.adapted(model)
    before, after = dict(store.load(home / "base")[0].named_parameters()), dict(model.named_parameters())
    assert name == "frozen, labels" or [n for n in before if not torch.equal(before[n], after[n])]
    kept = [n for n in before if n.endswith(("ffn.up.weight", "embed.token.weight")) and "blocks.1" not in n]
    assert kept and all(torch.equal(before[n], after[n]) for n in kept)
    if "labels" in name:
        assert Checkpoint.open(tmp_path / "whole").labels == ("even", "odd")


def test_a_merged_model_stands_alone(home, tmp_path):
    training.run(changed(home, TUNES["lora"][0]), tmp_path / "run")
    assert cli.main(["convert", str(tmp_path / "run"), str(tmp_path / "plain"), "--layout", "glassformer"]) == 0
    left, right = store.load(tmp_path / "run")[0], store.load(tmp_path / "plain")[0]
    assert Checkpoint.open(tmp_path / "plain").base is None
    assert all(map(torch.equal, left.parameters(), right.parameters()))
    again = dataclasses.replace(changed(home, objectives.Full()), model={"from": str(tmp_path / "run")})
    ended = training.run(again, tmp_path / "on")  # what was changed is a base as well
    assert ended.step == 8


def test_tuning_needs_a_trained_model_and_the_same_one(home, tmp_path):
    settings = changed(home, TUNES["frozen"][0])
    with pytest.raises(UserError, match=r"Frozen changes a model that was trained; name it, \[model\] from"):
        training.run(dataclasses.replace(settings, model={"recipe": "glass/1m"}), tmp_path / "none")
    model, tokenizer = store.load(home / "base")
    store.save(model, tmp_path / "base", tokenizer)
    settings = dataclasses.replace(settings, model={"from": str(tmp_path / "base")})
    training.run(settings, tmp_path / "run")
    with torch.no_grad():
        model.embed.token.weight.add_(1.0)
    store.save(model, tmp_path / "base", tokenizer)
    with pytest.raises(UserError, match=r"has other weights than when"):
        training.run(settings, tmp_path / "run", resume=True)


# --------------------------------------------------------------------------------------- averages


def test_an_average_is_the_mean_of_the_last_checkpoints(home, tmp_path):
    assert cli.main(["average", str(home / "base"), "--last", "3", "--out", str(tmp_path / "mean")]) == 0
    model, tokenizer = store.load(tmp_path / "mean")
    assert tokenizer is not None
    parts = [dict(store.load(path)[0].named_parameters()) for path in checkpoint.steps(home / "base")[-3:]]
    assert len(parts) == 3
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, torch.stack([part[name] for part in parts]).mean(0))


@pytest.mark.parametrize(
    ("last", "said"), [(9, r"keeps 3 checkpoints; give --last 3, or train with --keep 9"), (0, r"--last is 0")]
)
def test_averages_of_too_few(home, last, said):
    with pytest.raises(UserError, match=said):
        checkpoint.average(home / "base", last)


def test_facts_are_logged(tmp_path, home):
    shape = tiny.DECODERS["mixtral"]
    shape = dataclasses.replace(shape, embed=config.Embed(60), context=32)
    from glassformer.config import serial

    how = run.Train(steps=2, batch=4, accumulate=2, dtype="float32", evaluate_every=2, tensorboard=False)
    training.run(run.Run(serial.to_dict(shape), run.Data(str(home / "text.txt"), tokenizer="char"), how), tmp_path)
    line = hooks.read_log(tmp_path / "log.jsonl")[-1]
    assert len(line["load"]) == 2 and len(line["load"][0]) == 4 and len(line["entropy"]) == 2
