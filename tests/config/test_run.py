"""The run file: reading, overrides, and what it says to a mistake."""

import pytest

from glassformer import config
from glassformer.core.config import run, serial
from glassformer.core.errors import nearest
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.runs import run_config, run_file
from glassformer.runs.run_plan import plan_run
from mistakes import SENTENCES, mistake


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def small():
    block = config.Block(config.Attention(heads=4), config.GatedMLP(hidden=64))
    return config.Decoder(
        dim=32, context=16, embed=config.Embed(vocab=50), decoder=config.Stack(4, (block,))
    )


def test_two_lines_are_a_run(tmp_path):
    result = run_file.read_run(
        write(tmp_path, '[model]\nrecipe = "glass/1m"\n[data]\ntrain = "python-docs"\n')
    )
    assert result == run_config.Run(train=run.Train(optimizer=run.FROM_SCRATCH))
    assert result.train.steps == 1000


def test_tables_of_every_kind(tmp_path):
    text = """
    [model]
    recipe = "glass/1m"
    dim = 64
    [model.decoder]
    depth = 2
    [data]
    train = { "a.txt" = 2.0, "b.txt" = 1 }
    valid = "c.txt"
    [train]
    optimizer = { type = "Muon", lr = 0.01, rest = { lr = 1e-3 } }
    schedule = "WarmupStableDecay"
    """
    result = run_file.read_run(write(tmp_path, text))
    assert result.data.sources() == {"a.txt": 2.0, "b.txt": 1.0}
    assert result.data.valid == "c.txt"
    assert result.train.optimizer == run.Muon(lr=0.01, rest=run.AdamW(lr=1e-3))
    assert result.train.schedule == run.WarmupStableDecay()
    assert run_file.model_changes(result.model) == {"dim": 64, "decoder": {"depth": 2}}


def test_the_command_line_reaches_train_data_and_model(tmp_path):
    expected = {
        "steps": "500",
        "decoder.depth": "8",
        "data.tokenizer": "char",
        "optimizer.lr": "0.02",
        "train.clip": "none",
        "schedule": "Constant",
    }
    result = run_file.read_run(write(tmp_path, "[train]\nsteps = 7\n"), expected)
    assert result.train.steps == 500
    assert result.train.optimizer == run.Muon(lr=0.02, rest=run.AdamW(lr=0.04))
    assert result.train.clip is None
    assert result.train.schedule == run.Constant()
    assert result.data.tokenizer == "char"
    assert result.model == {"recipe": "glass/1m", "decoder.depth": "8"}


def test_a_type_by_name_and_its_settings_together():
    result = run_file.read_run(
        None, {"optimizer": "Muon", "optimizer.lr": "0.01", "optimizer.rest.lr": "1e-3"}
    )
    assert result.train.optimizer == run.Muon(lr=0.01, rest=run.AdamW(lr=1e-3))


def test_a_recipe_on_the_command_line_replaces_the_files(tmp_path):
    path = write(tmp_path, '[model]\nfrom = "folder"\ndecoder.depth = 2\n')
    assert run_file.read_run(path, {"recipe": "gpt2/124m"}).model == {
        "decoder": {"depth": 2},
        "recipe": "gpt2/124m",
    }


def test_a_run_survives_json():
    full = run_config.Run(
        data=run_config.Data(train={"a": 1.0}),
        train=run.Train(optimizer=run.Muon(groups=(run.Group("*.q.*"),))),
    )
    assert serial.loads(run_config.Run, serial.dumps(full)) == full


def test_changes_are_checked_when_all_are_in():
    changed = serial.change(
        small(), {"dim": 30, "decoder.pattern.attention.heads": "5", "decoder.depth": 2}
    )
    assert (changed.dim, changed.decoder.pattern[0].attention.heads, changed.decoder.depth) == (
        30,
        5,
        2,
    )
    tables = {
        "decoder": {
            "position": {"type": "Rotary", "theta": 5e5},
            "pattern": {"attention": {"kv_heads": 2}},
        }
    }
    changed = serial.change(small(), tables)
    assert changed.decoder.position == config.Rotary(5e5)
    assert changed.decoder.depth == 4
    assert changed.decoder.pattern[0].attention == config.Attention(heads=4, kv_heads=2)


@pytest.mark.parametrize("overrides, message", SENTENCES["settings of a run"])
def test_a_mistake_is_one_sentence(overrides, message):
    with mistake(message):
        run_file.read_run(None, overrides)


@pytest.mark.parametrize("changes, message", SENTENCES["models that cannot be"])
def test_a_model_that_cannot_be_is_one_sentence(changes, message):
    with mistake(message):
        serial.change(small(), changes)


def test_going_on_from_a_checkpoint_is_gentle_unless_told_otherwise():
    assert run_file.read_run(None, {}).train.optimizer == run.FROM_SCRATCH
    assert run_file.read_run(None, {"recipe": "gpt2/124m"}).train.optimizer == run.Muon()
    assert run_file.read_run(None, {"from": "somewhere"}).train.optimizer == run.FINETUNE
    assert run_file.read_run(
        None, {"from": "somewhere", "optimizer.lr": "0.5"}
    ).train.optimizer == run.AdamW(lr=0.5)


def test_a_run_folder_lends_its_tokenizer(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "best").write_text("step-000007\n")
    local = train_tokenizer("char", ["abc"], None)
    local.save(tmp_path / "run" / "step-000007")
    for folder in (tmp_path / "run", tmp_path / "run" / "step-000007"):
        settings = run_config.Run(data=run_config.Data(tokenizer=str(folder)))
        assert plan_run(settings).with_tokenizer().tokenizer.fingerprint == local.fingerprint


def test_one_rate_scales_every_group():
    base = run_file.read_run(None, {}).train.optimizer
    scaled = run_file.read_run(None, {"lr": "1e-3"}).train.optimizer
    assert scaled.lr == 1e-3
    assert scaled.rest.lr == pytest.approx(base.rest.lr * 1e-3 / base.lr)
    assert run_file.read_run(None, {"optimizer": "AdamW", "lr": ".001"}).train.optimizer.lr == 1e-3
    with mistake(r'"learning_rate".*"lr"'):
        run_file.read_run(None, {"learning_rate": "1e-3"})


@pytest.mark.parametrize(
    "changes, rate",
    [
        ({"lr": "1e-3"}, 2e-3),
        ({"optimizer.lr": "1e-3"}, 2e-3),
        ({"optimizer": {"lr": 1e-3}}, 2e-3),
        ({"optimizer": {"lr": 1e-3, "rest": {"eps": 1e-7}}}, 2e-3),
        ({"optimizer.lr": "1e-3", "lr": "2e-3"}, 4e-3),
        ({"optimizer": "Muon", "lr": "1e-3"}, 1e-3),
        ({"optimizer.lr": "1e-3", "optimizer.rest.lr": "5e-3"}, 5e-3),
        ({"lr": "1e-3", "optimizer.rest": {"lr": 5e-3}}, 5e-3),
        ({"optimizer": {"lr": 1e-3, "rest": {"type": "AdamW", "lr": 5e-3}}}, 5e-3),
        ({"optimizer.rest.lr": "5e-3"}, 5e-3),
    ],
)
def test_the_rate_of_the_rest_follows_unless_it_is_given(changes, rate):
    """Three ways to say one thing: a rate ten times lower is so for embeddings and head as well."""
    assert run_file.read_run(None, changes).train.optimizer.rest.lr == pytest.approx(rate)


@pytest.mark.parametrize("betas", [(0.9, 1.0), (1.0, 0.9), (-0.1, 0.9), (0.9,)])
def test_a_mean_that_never_moves_is_refused(betas):
    with mistake(r"AdamW\.betas is .*; give two numbers from 0 to below 1"):
        run.AdamW(betas=betas)
    assert run.AdamW(betas=(0.0, 0.999)).betas == (0.0, 0.999)


@pytest.mark.parametrize(
    "word, words, hint",
    [
        ("dpeth", ["depth", "width"], ' Did you mean "depth"?'),
        ("--max-nw", ["--max-new", "--seed"], ' Did you mean "--max-new"?'),
        ("hiden", ["hide", "hidden"], ' Did you mean "hidden"?'),
        ("tarin", ["tarina", "train"], ' Did you mean "train"?'),  # letters that changed places
        ("strand", ["stand", "strands"], ' Did you mean "strands"?'),  # one of several
        ("depth", ["a.b.depth", "c.depth"], ' Did you mean "c.depth"?'),  # the least deep
        ("depth", ["b.depth", "c.depth", "d.depth"], ' Did you mean "b.depth" or "c.depth"?'),
        ("qqqq", ["depth", "width"], " Known: depth, width."),
        ("qqqq", map(str, range(10**5, 10**5 + 31)), ""),
    ],
)
def test_the_hint_names_what_was_meant(word, words, hint):
    assert nearest(word, words) == hint


@pytest.mark.parametrize("word", ["patience", "early_stopping"])
def test_the_fields_words_for_an_early_stop_name_ours(word, tmp_path):
    for args in ((None, {word: "5"}), (write(tmp_path, f"[train]\n{word} = 5\n"),)):
        with mistake('Did you mean "early_stop"'):
            run_file.read_run(*args)


@pytest.mark.parametrize("path, message", SENTENCES["words of the field"])
def test_the_fields_words_are_found_inside_a_table(path, message):
    """By runs/synonyms.py."""
    with mistake(f'Did you mean "{message}"'):
        run_file.read_run(None, {path: "0.1"})


def test_a_rate_in_a_run_file(tmp_path):
    """optimizer.lr = 1e-3 changes the usual optimizer of the recipe; so does schedule.warmup."""
    file = tmp_path / "run.toml"
    file.write_text("[train]\noptimizer.lr = 1e-3\nschedule.warmup = 1e-1\nsteps = 1e2\n")
    result = run_file.read_run(file).train
    assert result.optimizer == run.Muon(lr=1e-3, rest=run.AdamW(lr=2e-3))
    assert result.steps == 100
    assert result.schedule == run.WarmupStableDecay(warmup=0.1)
    assert run_file.read_run(file, {"optimizer.lr": "2e-3"}).train.optimizer.lr == 2e-3


@pytest.mark.parametrize(
    "text, rule",
    [
        ("window(16) | every(8)", config.Window(16) | config.Every(8)),
        ("strided(4) & prefix(2)", config.Strided(4) & config.Prefix(2)),
        ("causal", config.Causal()),
        ("Full", config.Full()),
    ],
)
def test_a_mask_is_written_in_a_run_file_as_the_command_masks_takes_it(tmp_path, text, rule):
    path = write(
        tmp_path, f'[model]\nrecipe = "glass/200k"\ndecoder.pattern.attention.mask = "{text}"\n'
    )
    for ids in (
        run_file.read_run(path),
        run_file.read_run(None, {"decoder.pattern.attention.mask": text}),
    ):
        assert plan_run(ids).model.decoder.pattern[0].attention.mask == rule


@pytest.mark.parametrize("text, message", SENTENCES["masks of a run"])
def test_a_mask_that_is_none_is_one_sentence(text, message):
    with mistake(message):
        plan_run(run_file.read_run(None, {"decoder.pattern.attention.mask": text}))


def test_one_context_is_that_of_the_rows_and_of_a_new_model():
    table = {"model": {"recipe": "glass/1m", "context": 64}}
    longer = run_file.read_run(table, {"context": "128"})
    assert (longer.model["context"], longer.train.context) == (128, 128)
    # shorter rows for the same model
    assert run_file.read_run(table, {"context": "32"}).model["context"] == 64
    assert run_file.read_run(table, {"train.context": "128"}).model["context"] == 64
    assert (
        run_file.read_run({"model": {"from": "out/a", "context": 64}}, {"context": "128"}).model[
            "context"
        ]
        == 64
    )


def test_a_list_of_numbers_is_written_with_commas_and_a_text_stays_one_text():
    assert serial.from_dict(run.Train, {"steps": 9, "save_at": "1,2,4"}).save_at == (1, 2, 4)
    settings = {"lr": 1e-3, "undecayed": "true"}  # the name of a parameter, to TOML another value
    assert serial.from_dict(run.AdamW, settings).undecayed == ("true",)


DEEP, LONG = "[" * 20_000, "1" + "0" * 5000


@pytest.mark.parametrize("text", [DEEP, LONG])
def test_what_no_toml_holds_is_one_sentence(text, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(f"[train]\nsteps = {text}\n")
    with mistake("run.toml is not valid TOML", "fix that line"):
        run_file.read_run(file)
    with mistake("steps"):
        run_file.read_run(None, {"steps": text})
