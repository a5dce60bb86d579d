"""Mechanisms from a user's own file (own_parts.py, docs/extending.md) do all that those of the
package do."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer import UserError, config, nn
from glassformer import families as recipes
from glassformer.cli import main
from glassformer.core.config import extend, run, serial
from glassformer.core.config import objective as objectives
from glassformer.core.config.mask_arrays import count_pairs
from glassformer.core.config.mask_expressions import parse_rule
from glassformer.core.errors import need
from glassformer.core.nn import Cache, Mask, Tape, build, build_model, builds
from glassformer.core.nn.build import makers
from glassformer.core.training.batches import Batch
from glassformer.core.training.optimizer import Optimizer
from glassformer.formats import lora, store
from glassformer.runs import launch
from glassformer.scale import cost
from glassformer.sight import masks
from tiny import CONTEXT, DIM, VOCAB, WIDE, block, decoder, tokens

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
    slots = (
        config.Norm
        | config.FeedForward
        | config.Position
        | config.MaskRule
        | config.RopeScaling
        | config.Pool
    )
    return (
        serial.members(slots) | serial.members(config.Block) | serial.members(objectives.Objective)
    )


def strange(own_types) -> config.Decoder:
    return decoder(
        own_types["DeepNorm"](
            config.Attention(4, 2, mask=own_types["Parity"](2) | config.Window(3)),
            own_types["Bilinear"](24),
            own_types["ScaleNorm"](),
        ),
        position=own_types["Decay"](),
        last_norm=own_types["ScaleNorm"](),
    )


def test_a_file_is_run_once_and_one_that_fails_is_told_in_a_sentence(forgotten, tmp_path):
    ran = tmp_path / "ran.txt"
    local = tmp_path / "mine.py"
    local.write_text(f"open({str(ran)!r}, 'a').write('x')\n")
    glassformer.use(local)
    glassformer.use(str(local))
    assert ran.read_text() == "x"
    for name, content, message in (
        (
            "zero.py",
            "a = 0\nb = 1 / a\n",
            r"zero\.py, line 2: ZeroDivisionError: division by "
            r"zero; fix it\.$",
        ),
        ("open.py", "a = (\n", r"open\.py, line 1: SyntaxError"),
        ("text.txt", "a = 1\n", r"its name must end in \.py"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            glassformer.use(tmp_path / name)
    with pytest.raises(UserError, match=r"none\.py is not a file"):
        glassformer.use(tmp_path / "none.py")


def test_the_page_tells_the_file():
    matches = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "\n\n".join(matches) == OWN.read_text()


def test_the_first_example_runs_as_the_page_says(forgotten, tmp_path, monkeypatch, capsys):
    page = PAGE.read_text()
    [toml] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    lines = [
        shlex.split(line) for line in re.findall(r"^    glassformer (.*)$", page, re.MULTILINE)
    ]
    assert [words[0] for words in lines] == ["train", "generate", "cost", "look"]
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(
        "".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(300))
    )
    Path("run.toml").write_text(toml)
    shutil.copy(OWN, "own_parts.py")
    small = ["--steps", "2", "--batch", "2", "--context", "16", "--data.vocab", "300"]
    for words, name in zip(lines, ("", "\n", "parameters", "decoder.blocks.3.resid"), strict=True):
        assert main([*words, *(small if words[0] == "train" else [])]) == 0
        assert name in capsys.readouterr().out
    trained = glassformer.load("out/mine")[0].config
    output = {
        f"decoder.pattern.feedforward.{name}": value
        for name, value in (("type", "ReluSquared"), ("hidden", "256"))
    }
    assert all(f"--{path} {value}" in " ".join(page.split()) for path, value in output.items())
    changed = serial.change(recipes.find("glass/1m"), {"decoder.depth": 4, **output})
    assert changed.decoder.pattern == trained.decoder.pattern
    squared = serial.members(config.FeedForward)["ReluSquared"](24)
    individual, actual = (
        build_model(decoder(block(feedforward=item)), seed=1)
        for item in (squared, config.MLP(24, "relu2", True))
    )
    assert torch.equal(individual(tokens()).logits, actual(tokens()).logits)


def test_it_trains_resumes_saves_and_loads(own_types, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text(
        "".join(f"{i} and {i + 1} make {2 * i + 1}.\n" for i in range(80))
    )
    Path("run.toml").write_text(RUN)
    assert main(["train", "run.toml", "--out", "whole", "--steps", "4"]) == 0
    log = launch.Log.__call__
    with monkeypatch.context() as stopped:

        def stop(self, step):
            log(self, step)
            if step.index == 2:
                signal.raise_signal(signal.SIGTERM)

        stopped.setattr(launch.Log, "__call__", stop)
        assert main(["train", "run.toml", "--out", "parts", "--steps", "4"]) == 128 + signal.SIGTERM
    assert main(["train", "run.toml", "--out", "parts", "--steps", "4", "--resume"]) == 0
    assert Path("parts/step-000002").exists() and Path("parts/step-000004").exists()
    second_model, _ = glassformer.load("parts")
    model, tokenizer = glassformer.load("whole")
    first = build_model(model.config, seed=0)
    assert model.decoder.blocks[0].attn_norm.gain.item() == pytest.approx(4.0, abs=0.1)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), second_model.parameters(), strict=True)
    )
    assert any(
        not torch.equal(a, b) for a, b in zip(model.parameters(), first.parameters(), strict=True)
    )
    using = ["--use", str(OWN)]
    assert main(["generate", "whole", "1 and", "--max-new", "6", "--temperature", "0", *using]) == 0
    assert main(["look", "whole", "1 and 2", *using]) == 0
    assert "decoder.blocks.0.ffn.hidden" in capsys.readouterr().out
    tune = [
        "--train.tune",
        "LoRA",
        "--train.tune.rank",
        "2",
        "--train.tune.target_modules",
        "*.ffn.w?",
        "--from",
        "whole",
    ]
    assert main(["train", "run.toml", "--out", "tuned", "--steps", "2", *tune, *using]) == 0
    tuned = glassformer.load("tuned")[0].decoder.blocks[0]
    changed = [
        not torch.equal(a, b)
        for a, b in zip(tuned.parameters(), model.decoder.blocks[0].parameters(), strict=True)
    ]
    assert changed == ["ffn.w" in name and "weight" in name for name, _ in tuned.named_parameters()]
    glassformer.save(model, "copy", tokenizer)
    again, _ = glassformer.load("copy")
    args = torch.arange(12)[None]
    assert torch.equal(again(args).logits, model(args).logits)
    assert (
        json.loads(Path("copy/config.json").read_text())["model"]["decoder"]["pattern"][0]["norm"][
            "type"
        ]
        == "ScaleNorm"
    )


def test_the_laws_hold_for_it(own_types):
    result = strange(own_types)
    assert serial.loads(config.Model, serial.dumps(result)) == result
    model = build_model(result, seed=1).eval()
    state = build_model(result, seed=1).state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    second_tokens = tokens()
    with torch.no_grad():
        plain = model(second_tokens).logits
        cache = Cache(model.config)
        cached = torch.cat(
            [model(piece, cache=cache).logits for piece in second_tokens.split([7, 1, 12], 1)], 1
        )
        torch.testing.assert_close(cached, plain, rtol=0, atol=1e-5)
        model.engine = "eager"
        torch.testing.assert_close(model(second_tokens).logits, plain, rtol=0, atol=1e-5)
        tape = Tape("*.ffn.hidden")
        model(second_tokens, tape=tape)
    assert tape["decoder.blocks.0.ffn.hidden"].shape == (3, 20, 24)


def test_an_objective_asks_what_it_says(own_types):
    second_tokens = tokens()
    batch = Batch(second_tokens[:, :-1], second_tokens[:, 1:])
    model = build_model(strange(own_types), seed=1)
    piece = own_types["LastTokens"](3)
    loss = piece.loss(model, piece.prepare(batch, None, None))
    logits = model(batch.tokens).logits[:, -3:]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets[:, -3:].flatten(), reduction="sum"
    )
    torch.testing.assert_close(loss.sum, expected, rtol=1e-5, atol=1e-4)
    assert loss.count == 3 * len(second_tokens) and piece.prepares


def test_each_module_says_how_it_starts(own_types):
    model = build_model(strange(own_types), seed=1)
    blocks = model.decoder.blocks[0]
    assert blocks.attn_norm.gain == DIM**0.5 == model.decoder.last_norm.gain
    assert (
        (blocks.ffn.inner.weight == 1).all()
        and (blocks.ffn.inner.bias == 0).all()
        and (blocks.ffn.w3.bias == 0).all()
    )
    assert (model.decoder.position.slope == 0.1).all()
    zero = config.Decoder(
        DIM,
        CONTEXT,
        config.Embed(VOCAB),
        strange(own_types).decoder,
        init=config.Init(residual="zero"),
    )
    assert isinstance(blocks, nn.model.Block) and blocks.alpha == 1.5
    writes = build_model(zero, seed=1).decoder.blocks[0].ffn
    assert (writes.w3.weight == 0).all() and (writes.w1.weight != 0).all()


def test_a_type_without_its_decorator_is_told_to_take_it(forgotten):
    @dataclasses.dataclass(frozen=True)
    class Plain:
        hidden: int = 8

    with pytest.raises(
        UserError,
        match=r"Plain is no type of this slot; write "
        r"@config\.member\(SLOT\) above",
    ):
        config.Block(config.Attention(2), Plain())  # type: ignore[arg-type]


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
    with pytest.raises(UserError, match="past the 5 positions"):
        model(tokens())
    with pytest.raises(UserError, match="48 does not fit"):
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
    with pytest.raises(UserError, match="160,000 blocks and experts"):
        cost.cost(serial.change(cfg, {"decoder.depth": 4})).total  # noqa: B018


def test_a_vector_that_nobody_fills_is_refused(own_types, monkeypatch):
    monkeypatch.delattr(type(build(own_types["ScaleNorm"](), 4)), "reset")
    with pytest.raises(
        UserError,
        match=r"attn_norm\.gain is neither a matrix nor a bias; give ScaleNormModule "
        r"a method reset",
    ):
        build_model(strange(own_types), seed=1)


def test_its_cost_is_what_is_counted(own_types):
    price = cost.cost(strange(own_types), batch=2)
    counted = sum(weight.numel() for weight in build_model(strange(own_types), seed=1).parameters())
    assert price.total == counted
    assert (
        price.activations() > 2 * CONTEXT * 24 * 2 * 4
        and dict(price.table())["parameters"] == f"{counted:,}"
    )


def test_a_rule_of_its_own_is_drawn_and_combined_though_it_knows_tensors_alone(forgotten):
    @config.member(config.MaskRule)
    class Near(config.Rule):
        size: int

    @builds(Near)
    def near(cfg, causal):
        return None if cfg.size > 99 else lambda q, k: (q - k).abs().clamp(max=50) < cfg.size

    for words in ("near(4)", "near(4) | every(8)", "every(2) & near(7)", "near(100) & window(3)"):
        actual = words.replace("near(100) & ", "").replace("near", "window")
        drawn, expected = masks.picture(words, 40), masks.picture(actual, 40)
        assert (drawn.cells == expected.cells).all() and (drawn.encoder, drawn.decoder) == (
            expected.encoder,
            expected.decoder,
        )
        assert drawn.encoder == count_pairs(parse_rule(words), 40, causal=False)
        pos = torch.arange(40)[None]
        assert torch.equal(
            *(Mask(pos, pos, True, parse_rule(text)).dense() for text in (words, actual))
        )


def test_a_rule_a_stretch_and_a_pool_of_its_own(own_types):
    assert parse_rule("parity(3) & window(9)") == own_types["Parity"](3) & config.Window(9)
    assert str(parse_rule("parity(3, 2)")) == "parity(3, 2)"
    slow = decoder(block(), position=config.Rotary(scaling=own_types["Halved"]()))
    half = decoder(block(), position=config.Rotary(scaling=config.LinearScaling(2.0)))
    second_tokens = tokens()
    remaining, right = (
        build_model(result, seed=1).eval()(second_tokens).logits for result in (slow, half)
    )
    assert torch.equal(remaining, right)
    encoder = config.Encoder(
        DIM, CONTEXT, config.Embed(VOCAB), slow.decoder, None, WIDE, own_types["Ends"](3)
    )
    assert build_model(encoder, seed=1)(second_tokens).pooled.shape == (3, 3)


def test_a_checkpoint_of_an_unknown_type_says_which_and_the_way_out(
    own_types, tmp_path, monkeypatch, capsys
):
    glassformer.save(build_model(strange(own_types), seed=1), tmp_path / "model")
    monkeypatch.setattr(serial, "_MEMBERS", {})
    with pytest.raises(
        UserError, match=r'"type" is "DeepNorm".*--use FILE, glassformer\.use'
    ) as output:
        glassformer.load(tmp_path / "model")
    assert str(output.value).count("\n") == 0 and str(tmp_path / "model") in str(output.value)
    assert main(["cost", str(tmp_path / "model")]) == 2
    assert "--use FILE" in capsys.readouterr().err
    monkeypatch.setattr(extend, "_USED", set())
    assert main(["cost", str(tmp_path / "model"), "--use", str(OWN)]) == 0
    assert "parameters" in capsys.readouterr().out


def test_lora_adapts_it_and_what_is_merged_loads(own_types, tmp_path):
    model = build_model(strange(own_types), seed=1)
    lora.tune(
        model,
        objectives.LoRA(2, target_modules=("*.ffn.w[12]", "*.attn.q"), modules_to_save=("*.gain",)),
        seed=3,
    )
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {
        "decoder.blocks.0.ffn.w1.up",
        "decoder.blocks.0.ffn.w2.up",
    } < trained and "decoder.blocks.0.attn_norm.gain" in trained
    with torch.no_grad():
        [weight.add_(0.1) for weight in model.parameters() if weight.requires_grad]
        logits = model.eval()(tokens()).logits
        glassformer.save(model, tmp_path / "model")
        torch.testing.assert_close(
            glassformer.load(tmp_path / "model")[0](tokens()).logits, logits, rtol=0, atol=1e-4
        )


def test_no_published_layout_holds_it(own_types, tmp_path):
    with pytest.raises(
        UserError, match="No published layout holds Bilinear, Decay, DeepNorm, Parity, ScaleNorm"
    ):
        glassformer.save(build_model(strange(own_types), seed=1), tmp_path / "model", layout="hf")


def test_what_could_never_be_loaded_is_not_saved(own_types, tmp_path):
    class Odd:
        kind: object = torch.float32

    model = build_model(decoder(block(), position=config.Rotary()), seed=1)
    model.decoder.blocks[0].ffn = build(own_types["Bilinear"](24), DIM)  # not what the config says
    with pytest.raises(UserError, match=r"does not describe decoder\.blocks\.0\.ffn"):
        store.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    with pytest.raises(
        UserError,
        match=r"norm.*Odd is no type of this slot; write @config\.member",
    ):
        block(norm=serial.frozen(Odd)())  # never a member


def test_a_name_of_the_house_is_not_taken(forgotten):
    with pytest.raises(UserError, match="has a RMSNorm already"):

        @config.member(config.Norm)
        class RMSNorm:
            pass


def test_a_member_is_checked_where_it_is_made(own_types):
    with pytest.raises(UserError, match=r'Bilinear\.hidden: "wide" is not an integer'):
        own_types["Bilinear"]("wide")
