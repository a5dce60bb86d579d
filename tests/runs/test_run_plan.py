"""The plan of a run whose source has a tokenizer of its own: trained, resumed, averaged, translated
with; misfits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from folders import read_json
from glassformer import generation, runs
from glassformer.cli import main
from glassformer.formats import store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs import launch, prepare, run_config, run_file
from glassformer.tasks import objectives
from mistakes import mistake
from tiny import equal_tensors

SMALL = {
    "dim": 32,
    "context": 32,
    "encoder.depth": 1,
    "decoder.depth": 1,
    "steps": 12,
    "batch": 4,
    "train.context": 32,
    "evaluate_every": 4,
    "save_every": 4,
    "sample_every": 4,
    "device": "cpu",
    "tensorboard": False,
}
WORDS = ["ein", "zwei", "drei", "vier", "sechs"]
GLASS = ["one", "two", "three", "four", "six"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """Sources of German words in capitals, targets of English words and their number."""
    folder = tmp_path_factory.mktemp("lines")
    pairs = [(WORDS[i % 5], WORDS[i // 5 % 5], GLASS[i % 5], GLASS[i // 5 % 5]) for i in range(50)]
    (folder / "s").write_text("".join(f"{a.upper()} UND {b.upper()}\n" for a, b, _, _ in pairs))
    (folder / "t").write_text("".join(f"{c} and {d}\n" for _, _, c, d in pairs))
    return folder


def settings(lines, **changes):
    table = {
        "model": {"recipe": "glass/pair-3m"},
        "data": {
            "type": "Examples",
            "train": {"source": str(lines / "s"), "target": str(lines / "t")},
            "tokenizer": "words",
            "source_tokenizer": "bpe",
            "vocab": 40,
            "source_vocab": 270,
        },
        "train": {"objective": "Seq2Seq"},
    }
    dotted = {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}
    return run_file.read_run(
        table, {name: value for name, value in dotted.items() if value is not ...}
    )


def test_each_side_has_the_tokenizer_of_its_own_texts(lines):
    planned = runs.plan_run(settings(lines))
    plan = planned.with_tokenizer()
    reads = plan.source_tokenizer
    writes = plan.tokenizer
    assert reads is not None
    assert writes is not None
    assert "UND" in reads.decode(reads.encode("UND"))
    assert len(reads.encode("UND")) < 3
    # unknown to the target
    assert writes.encode("UND") == [writes.encode("nothing")[0]] != writes.encode("and")
    model = plan.model
    assert (
        (model.embed.vocab, model.source_embed.vocab)
        == (writes.size, reads.size)
        == (planned.vocab, 270)
    )
    assert planned.source_vocab == 270
    assert planned.model == model  # told without training the BPE
    # what the batches hold: the source in one tokenizer's ids, closed by its end, the target in the
    # other's
    batch = next(prepare.run_data(plan).batches)
    row = batch.source[0][batch.source_pos[0] >= 0].tolist()
    assert reads.eos in row
    assert reads.eos >= writes.size
    assert int(batch.source.max()) == reads.eos
    assert " UND " in reads.decode(row[: row.index(reads.eos)])
    assert int(batch.tokens.max()) < writes.size
    assert " and " in writes.decode([i for i in batch.tokens[0].tolist() if i >= 0][1:4])


def test_its_own_embeddings_can_be_set_and_come_after_the_models_changes(lines):
    model = runs.plan_run(settings(lines, source_embed__dim=16, embed__scale=3.0)).model
    assert (model.embed.dim, model.source_embed.dim) == (
        None,
        16,
    )
    assert model.source_embed.scale == 3.0
    assert runs.plan_run(settings(lines, source_embed__vocab=300)).model.source_embed.vocab == 300
    repeated = runs.plan_run(
        settings(lines, data__source_vocab=None, data__vocab=265, data__tokenizer="bpe")
    )
    assert (repeated.vocab, repeated.source_vocab) == (265, 265)
    alone = runs.plan_run(
        settings(lines, data__source_tokenizer=None, data__source_vocab=None)
    ).with_tokenizer()
    assert alone.source_tokenizer is None
    assert alone.model.source_embed is None
    # learned from both sides
    assert alone.tokenizer is not None
    assert len(alone.tokenizer.encode("UND and")) == 2


def test_a_run_is_resumed_translates_and_is_gone_on_from(lines, tmp_path, monkeypatch, capfd):
    from glassformer.commands.train import write_sample

    runs.run(settings(lines), tmp_path / "whole", sample=write_sample)
    err = capfd.readouterr().err
    assert "Training a words tokenizer of the target." in err
    assert ("Training a bpe tokenizer of the source.") in err
    assert "UND" in err
    assert "->" in err
    assert "(none:" not in err  # the samples
    first = launch.Log.__call__

    def stop(self, step):
        first(self, step)
        if step.index == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(launch.Log, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        runs.run(settings(lines), tmp_path / "cut")
    monkeypatch.undo()
    capfd.readouterr()
    runs.run(settings(lines), tmp_path / "cut", resume=True)
    assert "Training a" not in capfd.readouterr().err
    remaining, right = (
        dict(store.load(tmp_path / f / "step-000012")[0].named_parameters())
        for f in ("whole", "cut")
    )
    assert "source_embed.token.weight" in remaining
    assert equal_tensors(remaining, right)

    model, writes = store.load(tmp_path / "whole")
    reads = Checkpoint.open(tmp_path / "whole").source_tokenizer()
    saved = read_json(tmp_path / "whole" / "run.json")
    assert writes is not None
    assert reads is not None
    assert (saved["tokenizer"], saved["source_tokenizer"]) == (
        writes.fingerprint,
        reads.fingerprint,
    )
    ids = [*reads.encode("EIN UND ZWEI"), reads.eos]
    text = generation.beam(model, writes, [ids], beams=2, max_new=6)[0][0].text
    assert (
        main(
            ["translate", str(tmp_path / "whole"), "EIN UND ZWEI", "--beams", "2", "--max-new", "6"]
        )
        == 0
    )
    assert capfd.readouterr().out.strip() == text.strip()
    data = [
        "--data",
        str(lines / "s"),
        "--target",
        str(lines / "t"),
        "--max-new",
        "6",
        "--json",
    ]
    assert main(["eval", str(tmp_path / "whole"), *data, "--beams", "1"]) == 0
    assert "bleu" in capfd.readouterr().out
    assert (
        main(["average", str(tmp_path / "whole"), "--last", "2", "--out", str(tmp_path / "mean")])
        == 0
    )
    mean = Checkpoint.open(tmp_path / "mean").source_tokenizer()
    assert mean is not None
    assert mean.fingerprint == reads.fingerprint

    changes = {
        k: v
        for k, v in SMALL.items()
        if k not in ("dim", "context", "encoder.depth", "decoder.depth")
    }
    again = run_file.read_run(
        {
            "model": {"from": str(tmp_path / "whole")},
            "data": {
                "type": "Examples",
                "train": {"source": str(lines / "s"), "target": str(lines / "t")},
            },
            "train": {"objective": "Seq2Seq"},
        },
        {**changes, "steps": 2},
    )
    plan = runs.plan_run(again)
    assert plan.source_tokenizer is not None
    assert plan.source_tokenizer.fingerprint == reads.fingerprint
    runs.run(again, tmp_path / "on")
    assert Checkpoint.open(tmp_path / "on").config == model.config
    # a run's folder names the source's tokenizer for the source
    named = settings(lines, data__source_tokenizer=str(tmp_path / "whole"), data__source_vocab=None)
    result = runs.plan_run(named).find_tokenizer(source=True)
    assert result.fingerprint == reads.fingerprint != writes.fingerprint
    # running text has one side
    span = replace(again, data=run_config.Data(train=str(lines / "s")))
    span = replace(span, train=replace(span.train, objective=objectives.Span()))
    with mistake(
        r"The model's source tokenizer is for a source beside a "
        r"target.*Span"
    ):
        runs.plan_run(span)


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"recipe": "glass/1m", "encoder__depth": ...},
            r"data\.source_tokenizer is for an encoder .* a Decoder .* leave out",
        ),
        (
            {"data__source_tokenizer": None},
            r"data\.source_vocab is for a tokenizer of the "
            r"source; give data\.source_t",
        ),
        ({"data__source_vocab": 0}, r"data\.source_vocab is 0; give a number from 1"),
        (
            {"data__source_tokenizer": "wrods"},
            r'data\.source_tokenizer: "wrods" is not a '
            r"file.*words",
        ),
        (
            {"source_embed__vocab": 20},
            r"The source tokenizer has 270 tokens, the model's "
            r"source_embed\.vocab only 20",
        ),
        ({"embed__vocab": 8}, r"The tokenizer has 10 tokens, the model's embed\.vocab only 8"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(lines, changes, message):
    with mistake(message):
        assert runs.plan_run(settings(lines, **changes)).with_tokenizer().model


def test_other_objectives_and_one_sided_models_are_refused(lines, tmp_path):
    from glassformer import families as recipes
    from glassformer.core.config import serial
    from glassformer.core.nn import build_model

    query = settings(lines)
    (tmp_path / "films.tsv").write_text("text\tlabel\nfine\t1\ndull\t0\n")
    data = run_config.Examples(train=str(tmp_path / "films.tsv"), source_tokenizer="bpe")
    options = replace(query.train, objective=objectives.Classify())
    with mistake(
        r"data\.source_tokenizer is for a source beside a "
        r"target.*Classify has none"
    ):
        runs.plan_run(run_config.Run({"recipe": "glass/1m", "decoder.depth": 1}, data, options))
    shape = {
        k: v for k, v in SMALL.items() if k in ("dim", "encoder.depth", "decoder.depth", "context")
    }
    shared = serial.change(recipes.find("glass/pair-3m"), {**shape, "embed.vocab": 300})
    item = runs.plan_run(
        settings(lines, data__source_tokenizer=None, data__source_vocab=None)
    ).find_tokenizer()
    store.save(build_model(shared, seed=0), tmp_path / "shared", item)
    with mistake(
        r"shared has one vocabulary for both sides; leave out "
        r"data\.source_tokenizer"
    ):
        runs.plan_run(replace(query, model={"from": str(tmp_path / "shared")}))
    with mistake("source_tokenizer"):
        run_file.read_run({"data": {"type": "Data", "source_tokenizer": "bpe"}})
