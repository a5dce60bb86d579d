"""Mechanisms from a user's own file (own_parts.py, docs/extending.md) do all that those of the
package do."""

from __future__ import annotations

import builtins
import dataclasses
import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
import tiny
from folders import read_json
from glassformer import config, nn
from glassformer import families as recipes
from glassformer.core.config import objective as objectives
from glassformer.core.config import run, serial
from glassformer.core.config.mask_expressions import parse_rule
from glassformer.core.errors import need
from glassformer.core.nn import Cache, Mask, Tape, build, build_model, builds
from glassformer.core.nn.build import makers
from glassformer.core.training.batches import Batch
from glassformer.core.training.optimizer import Optimizer
from glassformer.formats import extend, store, tuning
from glassformer.runs import launch
from glassformer.scale import cost
from glassformer.scale.cost import count_pairs
from glassformer.sight import masks
from mistakes import mistake
from tiny import CONTEXT, DIM, VOCAB, WIDE, block, decoder, equal_tensors, tokens

OWN = Path(__file__).parents[1] / "own_parts.py"
PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
RUN = """
[model]
dim = 16
context = 16
[model.decoder]
depth = 1
position = "Decay"
[model.decoder.pattern]
type = "DeepNorm"
norm = "ScaleNorm"
attention = { heads = 2, mask = { type = "Either", rules = ["Parity", { type = "Window", size = 3 }] } }
feedforward = { type = "Bilinear", hidden = 24 }
[data]
train = "corpus.txt"
tokenizer = "char"
[train]
batch = 2
dtype = "float32"
sample_every = 0
tensorboard = false
save_every = 2
objective = { type = "LastTokens", count = 3 }
optimizer = { type = "AdamW", lr = 1e-3 }
schedule = "Constant"
"""


@pytest.fixture
def forgotten(monkeypatch):
    """Types registered here are known in this test alone."""
    monkeypatch.setattr(serial, "_MEMBERS", {})
    monkeypatch.setattr(sys.modules["glassformer.core.nn.build"], "_MAKERS", dict(makers()))
    monkeypatch.setattr(extend, "_USED", set())


@pytest.fixture
def own_types(forgotten):
    """The parts of own_parts.py, known while the test runs."""
    glassformer.use(OWN)
    slots = ("Norm", "FeedForward", "Position", "MaskRule", "RopeScaling", "Pool", "Block")
    members = serial.members(objectives.Objective)
    return members | {n: t for s in slots for n, t in serial.members(getattr(config, s)).items()}


def strange(own_types) -> config.Decoder:
    rule = own_types["Parity"](2) | config.Window(3)
    sublayers = (
        config.Attention(4, 2, mask=rule),
        own_types["Bilinear"](24),
        own_types["ScaleNorm"](),
    )
    block = own_types["DeepNorm"](*sublayers)
    return decoder(block, position=own_types["Decay"](), last_norm=own_types["ScaleNorm"]())


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "zero.py",
            "a = 0\nb = 1 / a\n",
            r"zero\.py, line 2: ZeroDivisionError: .* zero; fix it\.$",
        ),
        ("open.py", "a = (\n", r"open\.py, line 1: SyntaxError"),
        ("text.txt", "a = 1\n", r"its name must end in \.py"),
        ("none.py", None, r"none\.py is not a file"),
    ],
)
def test_a_file_that_fails_is_told_in_a_sentence(forgotten, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with mistake(message):
        glassformer.use(tmp_path / name)


def test_a_file_that_was_edited_within_a_second_is_read_anew(forgotten, tmp_path, monkeypatch):
    """Saved bytecode knows a file by its second and its size."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "mine.py"
    for value in "12":
        file.write_text(f"import builtins\nbuiltins.edited = {value}\n")
        os.utime(file, (10**9, 10**9))
        extend._USED.clear()
        glassformer.use(file)
        assert str(builtins.edited) == value
    del builtins.edited


def test_a_file_is_run_once(forgotten, tmp_path):
    ran, local = tmp_path / "ran.txt", tmp_path / "mine.py"
    local.write_text(f"open({str(ran)!r}, 'a').write('x')\n")
    for path in (local, str(local)):
        glassformer.use(path)
    assert ran.read_text() == "x"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The working folder, with a corpus and a run file."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(300)]
    Path("corpus.txt").write_text("".join(lines[:80]))
    Path("notes.txt").write_text("".join(lines))
    Path("run.toml").write_text(RUN)
    shutil.copy(OWN, "own_parts.py")
    return tmp_path


def test_the_page_tells_the_file():
    matches = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "\n\n".join(matches) == OWN.read_text()


def test_the_first_example_runs_as_the_page_says(forgotten, home, terminal):
    page = PAGE.read_text()
    [toml] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lines = re.findall(r"^    glassformer (.*)$", page, re.MULTILINE)
    verbs = {"train": "", "generate": "\n", "cost": "parameters", "look": "decoder.blocks.3.resid"}
    verbs["verify"] = "21 checks passed, 0 failed"
    assert [line.split()[0] for line in lines] == list(verbs)
    Path("run.toml").write_text(toml)
    for line, name in zip(lines, verbs.values(), strict=True):
        small = " --steps 2 --batch 2 --context 16 --data.vocab 300" * line.startswith("train")
        assert name in terminal(line + small)
    trained = glassformer.load("out/mine")[0].config
    changes = {"type": "ReluSquared", "hidden": "256"}
    output = {f"decoder.pattern.feedforward.{name}": value for name, value in changes.items()}
    assert all(f"--{path} {value}" in " ".join(page.split()) for path, value in output.items())
    changed = serial.change(recipes.find("glass/1m"), {"decoder.depth": 4, **output})
    assert changed.decoder.pattern == trained.decoder.pattern
    squared = serial.members(config.FeedForward)["ReluSquared"](24)
    individual, actual = (
        build_model(decoder(block(feedforward=item)), seed=1)
        for item in (squared, config.MLP(24, "relu2", True))
    )
    assert torch.equal(individual(tokens()).logits, actual(tokens()).logits)


def test_the_script_in_plain_python_runs(forgotten, tmp_path, monkeypatch, capsys) -> None:
    (script,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(script.split("\n\n")[1].splitlines()) <= 15  # below the imports
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("".join(f"{i} and {i} make {2 * i}.\n" for i in range(300)))
    shutil.copy(OWN, "own_parts.py")
    names: dict[str, Any] = {}
    exec(compile(script.replace("steps=100", "steps=3"), "extending.md", "exec"), names)
    model, letters = names["model"], names["letters"]
    written = glassformer.generate(model, letters, "12 and", max_new=20, seed=0).run().text
    assert [type(block.ffn).__name__ for block in model.decoder.blocks] == ["ReluSquaredModule"] * 4
    assert re.fullmatch(rf"1 \S+\n2 \S+\n3 \S+\n{re.escape(written)}\n", capsys.readouterr().out)


def weights_of(model):
    return dict(model.named_parameters())


def test_it_trains_resumes_saves_and_loads(own_types, home, monkeypatch, terminal):
    terminal("train run.toml --out whole --steps 4")
    log = launch.Log.__call__

    def stop(self, step):
        log(self, step)
        if step.index == 2:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as stopped:
        stopped.setattr(launch.Log, "__call__", stop)
        terminal("train run.toml --out parts --steps 4", code=128 + signal.SIGTERM)
    terminal("train run.toml --out parts --steps 4 --resume")
    assert Path("parts/step-000002").exists() and Path("parts/step-000004").exists()
    model, tokenizer = glassformer.load("whole")
    assert model.decoder.blocks[0].attn_norm.gain.item() == pytest.approx(4.0, abs=0.1)
    assert equal_tensors(weights_of(model), weights_of(glassformer.load("parts")[0]))
    assert not equal_tensors(weights_of(model), weights_of(build_model(model.config, seed=0)))
    terminal(f"generate whole '1 and' --max-new 6 --temperature 0 --use {OWN}")
    assert "decoder.blocks.0.ffn.hidden" in terminal(f"look whole '1 and 2' --use {OWN}")
    tune = "--train.tune LoRA --train.tune.rank 2 --train.tune.target_modules '*.ffn.w?'"
    terminal(f"train run.toml --out tuned --steps 2 {tune} --from whole --use {OWN}")
    before = weights_of(model.decoder.blocks[0])
    for name, weight in glassformer.load("tuned")[0].decoder.blocks[0].named_parameters():
        moved = not torch.equal(weight, before[name])
        assert moved == ("ffn.w" in name and "weight" in name), name
    glassformer.save(model, "copy", tokenizer)
    assert equal_tensors(weights_of(glassformer.load("copy")[0]), weights_of(model))
    (block,) = read_json(Path("copy/config.json"))["model"]["decoder"]["pattern"]
    assert block["norm"]["type"] == "ScaleNorm"


def test_the_laws_hold_for_it(own_types):
    result = strange(own_types)
    assert serial.loads(config.Model, serial.dumps(result)) == result
    model, ids = tiny.model(result), tokens()
    assert equal_tensors(model.state_dict(), build_model(result, seed=1).state_dict())
    with torch.no_grad():
        plain, cache = model(ids).logits, Cache(model.config)
        cached = [model(piece, cache=cache).logits for piece in ids.split([7, 1, 12], 1)]
        model.engine, tape = "eager", Tape("*.ffn.hidden")
        for logits in (torch.cat(cached, 1), model(ids, tape=tape).logits):
            assert_close(logits, plain, rtol=0, atol=1e-5)
    assert tape["decoder.blocks.0.ffn.hidden"].shape == (3, 20, 24)


def test_an_objective_asks_what_it_says(own_types):
    batch = Batch(tokens()[:, :-1], tokens()[:, 1:])
    model, piece = build_model(strange(own_types), seed=1), own_types["LastTokens"](3)
    loss = piece.loss(model, piece.prepare(batch, None, None))
    logits, targets = model(batch.tokens).logits[:, -3:], batch.targets[:, -3:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert_close(loss.sum, expected, rtol=1e-5, atol=1e-4)
    assert loss.count == 3 * len(batch.tokens) and piece.prepares


def test_each_module_says_how_it_starts(own_types):
    cfg = strange(own_types)
    model = build_model(cfg, seed=1)
    block = model.decoder.blocks[0]
    assert block.attn_norm.gain == DIM**0.5 == model.decoder.last_norm.gain
    for weight, value in (
        (block.ffn.inner.weight, 1),
        (block.ffn.inner.bias, 0),
        (block.ffn.w3.bias, 0),
        (model.decoder.position.slope, 0.1),
    ):
        assert (weight == value).all()
    assert isinstance(block, nn.model.Block) and block.alpha == 1.5
    zero = replace(cfg, init=config.Init(residual="zero"))
    writes = build_model(zero, seed=1).decoder.blocks[0].ffn
    assert (writes.w3.weight == 0).all() and (writes.w1.weight != 0).all()


def test_a_type_without_its_decorator_is_told_to_take_it(forgotten):
    @dataclasses.dataclass(frozen=True)
    class Plain:
        hidden: int = 8

    with mistake(
        r"Plain is no type of this slot; write "
        r"@config\.member\(SLOT\) above"
    ):
        config.Block(config.Attention(2), Plain())  # type: ignore[arg-type]


def test_a_type_without_a_module_is_told_to_take_one(forgotten):
    class Alone:
        hidden: int = 8

    alone = config.member(config.FeedForward)(Alone)
    with mistake(r"Alone has no module; write @builds\(Alone\) above the class of its module"):
        build(alone(), 4)


def test_a_mask_rule_is_a_rule(forgotten):
    class Stripes:
        size: int = 2

    stripes = config.member(config.MaskRule)(Stripes)
    with mistake(r"Stripes is a mask rule; write class Stripes\(config\.Rule\)"):
        builds(stripes)(lambda cfg, causal: lambda q, k: k % cfg.size == 0)


def test_a_buffer_is_refused(forgotten):
    """It would be in no file, and its memory is never filled."""

    class Fading:
        size: int = 4

    fading = config.member(config.FeedForward)(Fading)

    class FadingModule(nn.TracedModule):
        def __init__(self, cfg, dim):
            super().__init__()
            self.register_buffer("decay", torch.linspace(0, 1, dim))

    builds(fading)(FadingModule)
    with mistake(
        r"decoder\.blocks\.0\.ffn\.decay is a buffer, which no model's file holds; compute"
    ):
        build_model(decoder(block(feedforward=fading())), seed=1)


def test_a_batch_that_its_objective_did_not_prepare_is_refused():
    """A masked model would learn the next token, which it sees."""
    from glassformer.tasks.objectives import Masked

    with mistake(r"Masked changes each batch before it is learned; give .*Prepared\(batches, obj"):
        glassformer.train(build_model(tiny.DECODERS["llama"], seed=0), iter(()), Masked())


def test_what_a_part_says_of_itself_is_heard(forgotten):
    """The table of docs/extending.md: biases, tables, saved_activations, idle, networks, limit and check."""

    @config.member(config.FeedForward)
    class Grouped:
        groups: int = 2
        networks = 40_000

        def saved_activations(self, dim):
            return 10_000_000

        def idle(self, name, size):
            return size // self.groups if name == "maps" else 0

    @builds(Grouped)
    class GroupedModule(nn.TracedModule):
        biases, tables, writes = ("shift",), ("table",), ("maps",)

        def __init__(self, cfg, dim):
            super().__init__()
            self.maps = torch.nn.Parameter(torch.empty(cfg.groups, dim, dim))
            self.shift = torch.nn.Parameter(torch.empty(cfg.groups, dim))
            self.table = torch.nn.Parameter(torch.empty(7, dim))

        def forward(self, x, flow):
            return (x @ self.maps[0].T) + self.shift[0] + self.table[0]

    @config.member(config.Position)
    class Short:
        limit = 5

        def check(self, name, pattern, dim, width, context):
            need(dim != 48, f"{name}: 48 does not fit; give another dim.")

    builds(Short)(nn.position.Position)
    cfg = decoder(block(feedforward=Grouped()), position=Short())
    model = build_model(cfg, seed=1)
    with mistake("past the 5 positions"):
        model(tokens())
    with mistake("48 does not fit"):
        serial.change(cfg, {"dim": 48})
    ffn, depth = model.decoder.blocks[0].ffn, cfg.decoder.depth
    assert (ffn.shift == 0).all() and (ffn.table != 0).any() and (ffn.maps != 0).any()
    spent, without = (
        cost.cost(cfg),
        cost.cost(decoder(block(feedforward=config.MLP(1)), position=Short())),
    )
    assert spent.total == sum(weight.numel() for weight in model.parameters())
    assert (
        spent.idle() == depth * DIM * DIM == spent.multiplied - without.multiplied + 2 * depth * DIM
    )
    assert spent.activations() > 10_000_000
    groups = {
        path: group
        for group in Optimizer(model, run.AdamW(weight_decay=0.1)).groups()
        for path in group["paths"]
    }
    decays = [
        groups[f"decoder.blocks.0.ffn.{name}"]["weight_decay"]
        for name in ("maps", "shift", "table")
    ]
    assert decays == [0.1, 0.0, 0.1]
    with mistake("160,000 blocks and experts"):
        cost.cost(serial.change(cfg, {"decoder.depth": 4})).total  # noqa: B018
    with mistake("40,000,000,000,000 blocks and experts"):  # at once, without a list of them
        cost.cost(serial.change(cfg, {"decoder.depth": 10**9})).total  # noqa: B018


def test_a_vector_that_nobody_fills_is_refused(own_types, monkeypatch):
    monkeypatch.delattr(type(build(own_types["ScaleNorm"](), 4)), "reset")
    with mistake(
        r"attn_norm\.gain is neither a matrix nor a bias; give ScaleNormModule "
        r"a method reset"
    ):
        build_model(strange(own_types), seed=1)


@pytest.mark.parametrize(
    "words", ["near(4)", "near(4) | every(8)", "every(2) & near(7)", "near(100) & window(3)"]
)
def test_a_rule_of_its_own_is_drawn_and_combined_though_it_knows_tensors_alone(forgotten, words):
    @config.member(config.MaskRule)
    class Near(config.Rule):
        size: int

    @builds(Near)
    def near(cfg, causal):
        return None if cfg.size > 99 else lambda q, k: (q - k).abs().clamp(max=50) < cfg.size

    texts = (words, words.replace("near(100) & ", "").replace("near", "window"))
    drawn, expected = (masks.picture(text, 40) for text in texts)
    assert (drawn.cells == expected.cells).all()
    assert (drawn.encoder, drawn.decoder) == (expected.encoder, expected.decoder)
    assert drawn.encoder == count_pairs(parse_rule(words), 40, causal=False)
    pos = torch.arange(40)[None]
    assert torch.equal(*(Mask(pos, pos, True, parse_rule(text)).dense() for text in texts))


def test_a_rule_a_stretch_and_a_pool_of_its_own(own_types):
    assert parse_rule("parity(3) & window(9)") == own_types["Parity"](3) & config.Window(9)
    assert str(parse_rule("parity(3, 2)")) == "parity(3, 2)"
    slow, half = (
        decoder(block(), position=config.Rotary(scaling=scaling))
        for scaling in (own_types["Halved"](), config.LinearScaling(2.0))
    )
    logits = [tiny.model(cfg)(tokens()).logits for cfg in (slow, half)]
    assert torch.equal(*logits)
    embed, pool = config.Embed(VOCAB), own_types["Ends"](3)
    encoder = config.Encoder(DIM, CONTEXT, embed, slow.decoder, None, WIDE, pool)
    assert build_model(encoder, seed=1)(tokens()).pooled.shape == (3, 3)


def test_a_checkpoint_of_an_unknown_type_says_which_and_the_way_out(
    own_types, tmp_path, monkeypatch, terminal
):
    glassformer.save(build_model(strange(own_types), seed=1), tmp_path)
    monkeypatch.setattr(serial, "_MEMBERS", {})
    message = rf'{tmp_path}.*"type" is "DeepNorm".*--use FILE, glassformer\.use'
    with mistake(message):
        glassformer.load(tmp_path)
    assert "--use FILE" in terminal.refused(f"cost {tmp_path}")
    monkeypatch.setattr(extend, "_USED", set())
    assert "parameters" in terminal(f"cost {tmp_path} --use {OWN}")


def test_lora_adapts_it_and_what_is_merged_loads(own_types, tmp_path):
    model = build_model(strange(own_types), seed=1)
    names = ("*.ffn.w[12]", "*.attn.q")
    tuning.tune(
        model, objectives.LoRA(2, target_modules=names, modules_to_save=("*.gain",)), seed=3
    )
    trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
    for name in ("ffn.w1.up", "ffn.w2.up", "attn_norm.gain"):
        assert f"decoder.blocks.0.{name}" in trained
    with torch.no_grad():
        for weight in trained.values():
            weight.add_(0.1)
        logits = model.eval()(tokens()).logits
        glassformer.save(model, tmp_path)
        back = glassformer.load(tmp_path)[0](tokens()).logits
    assert_close(back, logits, rtol=0, atol=1e-4)


def test_what_could_never_be_loaded_is_not_saved(own_types, tmp_path):
    class Odd:
        kind: object = torch.float32

    model = build_model(decoder(block(), position=config.Rotary()), seed=1)
    model.decoder.blocks[0].ffn = build(own_types["Bilinear"](24), DIM)  # not what the config says
    with mistake(r"does not describe decoder\.blocks\.0\.ffn"):
        store.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with mistake(r"norm.*Odd is no type of this slot; write @config\.member"):
        block(norm=serial.frozen(Odd)())  # never a member


def test_a_name_of_the_house_is_not_taken(forgotten):
    with mistake("has a RMSNorm already"):

        @config.member(config.Norm)
        class RMSNorm:
            pass


def test_a_member_is_checked_where_it_is_made(own_types):
    with mistake(r"Bilinear\.hidden is 0; give a number above 0"):
        own_types["Bilinear"](0)
    with mistake(r'Bilinear\.hidden: "wide" is not an integer'):
        own_types["Bilinear"]("wide")


def test_a_link_to_itself_is_no_file(tmp_path):
    (tmp_path / "loop.py").symlink_to("loop.py")
    with mistake("loop.py is not a file; name a Python file"):
        glassformer.use(tmp_path / "loop.py")
