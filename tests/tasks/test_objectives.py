"""Every objective on the shapes it fits: learned by heart, in pieces, resumed bit for bit, refused
elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import glassformer
import tiny
from glassformer import config, runs, training
from glassformer.core.config import run, serial
from glassformer.core.nn import Tape, build_model
from glassformer.core.training import loss
from glassformer.core.training.batches import Batch
from glassformer.core.training.loop import train
from glassformer.core.training.loss import forward, gradients
from glassformer.core.training.micro_batches import MicroBatches
from glassformer.fast.training.bf16_replica import Bf16Replica
from glassformer.fast.training.execution import ExecutionSettings
from glassformer.formats import extend, store
from glassformer.formats.checkpoint import Checkpoint
from glassformer.runs import callbacks, launch, run_config, run_plan
from glassformer.tasks import objectives
from glassformer.tasks.correlation import matthews, pearson, ranks
from glassformer.tasks.objectives.classify import ascent
from mistakes import mistake
from seeding import generator_from

BERT = tiny.bert()
CLASSIFIER = replace(BERT, head=None, pool=config.Pool("first", "tanh", labels=3))
NUMBER = replace(BERT, head=None, pool=config.Pool("mean", labels=1))
SENTENCES = replace(BERT, head=None, pool=config.Pool("mean", normalize=True))
TAGGER = replace(BERT, head=None, pool=None, token_head=config.TokenHead(3))
SCORE = replace(tiny.DECODERS["llama"], pool=config.Pool("last", labels=1))
LAST = replace(tiny.DECODERS["llama"], pool=config.Pool("last", labels=3))


def packed(rows=4, length=14, seed=0):
    """Rows of two documents and some padding: tokens, pos, docs."""
    draw = generator_from(seed)
    tokens = torch.randint(5, tiny.VOCAB, (rows, length), generator=draw)
    pos = torch.full((rows, length), -1)
    document_ids = torch.full((rows, length), -1)
    for row in range(rows):
        first = 4 + row % 3
        second = 5 + row % 2
        pos[row, :first], document_ids[row, :first] = torch.arange(first), 0
        pos[row, first : first + second], document_ids[row, first : first + second] = (
            torch.arange(second),
            1,
        )
    return tokens, pos, document_ids


def batches():
    tokens, pos, document_ids = packed()
    source, source_pos, source_document_ids = packed(seed=1)
    present = pos >= 0
    targets = torch.where(present, tokens.roll(-1, 1), -1)
    few = torch.where(present & (torch.arange(tokens.shape[1]) % 4 == 1), tokens, -1)
    plain = Batch(tokens, torch.full_like(tokens, -1), pos, document_ids)
    labelled = replace(plain, segments=(pos > 2).long(), labels=torch.arange(8) % 3)
    return {
        "masked": (objectives.Masked(), BERT, replace(plain, targets=few)),
        "prefix": (
            objectives.Prefix(),
            tiny.DECODERS["llama"],
            replace(plain, targets=torch.where(pos > 2, targets, -1), prefix=present & (pos < 3)),
        ),
        "span": (
            objectives.Span(),
            tiny.t5(),
            Batch(tokens, targets, pos, document_ids, source, source_pos, source_document_ids),
        ),
        "seq2seq": (
            objectives.Seq2Seq(),
            tiny.vaswani(),
            Batch(tokens, targets, pos, document_ids, source, source_pos, source_document_ids),
        ),
        "seq2seq alone": (
            objectives.Seq2Seq(),
            tiny.DECODERS["llama"],
            Batch(tokens, targets, pos, document_ids),
        ),
        "classify": (objectives.Classify(), CLASSIFIER, labelled),
        "tag": (
            objectives.Tag(),
            TAGGER,
            replace(plain, targets=torch.where(few < 0, -1, few % 3)),
        ),
        "classify alone": (
            objectives.Classify(),
            LAST,
            replace(labelled, segments=None),
        ),
        "classify, agree and push": (
            objectives.Classify(rdrop=2.0, adversarial=0.1),
            CLASSIFIER,
            labelled,
        ),
        "regression, agree and push": (
            objectives.Classify(regression=True, rdrop=1.0, adversarial=0.1),
            NUMBER,
            replace(plain, labels=torch.linspace(-1, 1, 8)),
        ),
        "regression": (
            objectives.Classify(regression=True),
            NUMBER,
            replace(plain, labels=torch.linspace(-1, 1, 8)),
        ),
        "contrast": (objectives.Contrast(), SENTENCES, plain),
        "preference": (
            objectives.Preference(beta=1.0),
            tiny.DECODERS["llama"],
            Batch(tokens, targets, pos, document_ids, labels=torch.linspace(-9, -8, 8)),
        ),
        "preference, no reference": (
            objectives.Preference("simpo", beta=5.0),
            tiny.DECODERS["llama"],
            Batch(tokens, targets, pos, document_ids),
        ),
        "reward": (
            objectives.Reward(),
            SCORE,
            Batch(tokens, -torch.ones_like(tokens), pos, document_ids),
        ),
    }


CASES = batches()


class Same:
    """One batch again and again."""

    def __init__(self, batch):
        self.batch = batch

    def __iter__(self):
        return self

    def __next__(self):
        return self.batch

    def state(self):
        return {}


@pytest.mark.parametrize(
    "name", [name for name, (_, shape, _) in CASES.items() if name == "masked" or not shape.pool]
)
def test_no_objective_asks_the_device(name, asked_nothing):
    """Pools do: they count documents where the positions lie."""
    chosen, shape, batch = CASES[name]
    shape = replace(shape, pool=None)
    moved = batch.to("meta")
    with asked_nothing():
        model = build_model(shape, seed=1).bfloat16().to("meta").train()
        assert loss.backward(model, moved, chosen, 0.1).sum.is_meta
        if chosen.all_micro_batches is not None:
            assert chosen.all_micro_batches(
                model, MicroBatches([piece.to("meta") for piece in loss.split(batch, 2)])
            )[0].sum.is_meta


@pytest.mark.parametrize("name", CASES)
def test_what_the_host_counts_is_what_is_there(name):
    """Loss and gradients by the host's copy, as on a GPU, are those without."""
    chosen, shape, batch = CASES[name]
    model = build_model(shape, seed=1).train()
    results = []
    for args in (batch, replace(batch, host=batch)):
        model.zero_grad()
        done = loss.backward(model, args, chosen, 0.1)
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append(
            (done.sum, torch.as_tensor(done.count), torch.as_tensor(done.tokens), *grads)
        )
    for result, second in zip(*results, strict=True):
        assert_close(second, result)


@pytest.mark.parametrize("name", CASES)
def test_one_batch_is_learned_by_heart(name):
    chosen, shape, batch = CASES[name]
    model = build_model(shape, seed=1)
    settings = run.Train(
        steps=120, batch=4, optimizer=run.AdamW(lr=5e-3), schedule=run.Constant(0.05)
    )
    steps = train(model, Same(batch), chosen, settings, execution=ExecutionSettings())
    first = next(steps)
    assert first.tokens == int((batch.pos >= 0).sum())
    assert any(
        step.loss < min(0.1, first.loss / 10) and step.metrics.get("accuracy", 1.0) == 1.0
        for step in steps
    )


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("name", CASES)
def test_pieces_are_the_whole_batch(name, pieces):
    chosen, shape, batch = CASES[name]
    results = []
    for count in (1, pieces):
        model = build_model(shape, seed=1).double()
        label = (
            batch.labels.double()
            if batch.labels is not None and batch.labels.is_floating_point()
            else batch.labels
        )
        sums = gradients(model, replace(batch, labels=label), chosen, count, 0.1)
        results.append(
            (sums, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        )
    (full, right), (second_pieces, grads) = results
    assert full.count == second_pieces.count
    assert full.tokens == second_pieces.tokens
    assert full.loss == pytest.approx(second_pieces.loss, rel=1e-6)  # vectors are compared in fp32
    assert full.metrics == pytest.approx(second_pieces.metrics)
    for path, grad in right.items():
        assert_close(grads[path], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_bf16_is_near_fp32(name):
    chosen, shape, batch = CASES[name]
    model = build_model(shape, seed=1)
    half = Bf16Replica(model)
    half.follow()
    low = gradients(half.model, batch, chosen, 1)
    assert all(p.grad.dtype is torch.float32 for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    assert low.loss == pytest.approx(gradients(model, batch, chosen, 1).loss, rel=0.1, abs=0.2)


def test_dropout_is_the_same_in_both_readings_of_pieces():
    chosen, shape, batch = CASES["contrast"]
    shape = replace(shape, encoder=replace(shape.encoder, dropout=0.3))
    model = build_model(shape, seed=1).double()
    torch.manual_seed(3)
    sums = gradients(model, batch, chosen, 2)
    after = torch.rand(1)
    grads = [p.grad.clone() for p in model.parameters()]
    torch.manual_seed(3)
    vectors = torch.cat(
        [
            model(p.tokens, pos=p.pos, document_ids=p.document_ids).pooled
            for p in loss.split(batch, 2)
        ]
    )
    assert torch.equal(torch.rand(1), after)
    result = chosen.of_vectors(vectors)
    assert float(result.sum.detach()) == pytest.approx(sums.loss, rel=1e-6)
    for grad, right in zip(
        grads, torch.autograd.grad(result.sum, list(model.parameters())), strict=True
    ):
        assert_close(grad, right, rtol=1e-4, atol=1e-6)


def test_the_head_sees_only_the_hidden_tokens(monkeypatch):
    chosen, shape, batch = CASES["masked"]
    calls = []
    real = loss.cross_entropy
    monkeypatch.setattr(
        loss,
        "cross_entropy",
        lambda hidden, *args: calls.append(len(hidden)) or real(hidden, *args),
    )
    model = build_model(shape, seed=1)
    result = chosen.loss(model, batch, 0.1)
    assert calls == [result.count] == [int((batch.targets >= 0).sum())]
    logits = model(batch.tokens, pos=batch.pos, document_ids=batch.document_ids).logits.flatten(
        0, 1
    )
    plain = F.cross_entropy(
        logits, batch.targets.flatten(), ignore_index=-1, reduction="sum", label_smoothing=0.1
    )
    assert_close(result.sum, plain)


def test_a_batch_that_asks_nothing_is_skipped():
    chosen, shape, batch = CASES["masked"]
    batch = replace(batch, targets=torch.full_like(batch.targets, -1))
    step = next(
        train(
            build_model(shape, seed=1),
            Same(batch),
            chosen,
            run.Train(batch=4),
            execution=ExecutionSettings(),
        )
    )
    assert step.skipped == "the batch has no targets"


def test_contrast_is_cross_entropy_of_cosines_both_ways():
    vectors = torch.randn(6, 8, generator=generator_from(0))
    a = F.normalize(vectors[0::2], dim=-1)
    b = F.normalize(vectors[1::2], dim=-1)
    scores = torch.tensor([[float(x @ y) / 0.05 for y in b] for x in a])
    present, back = (-torch.log_softmax(s, 1).diagonal().sum() for s in (scores, scores.T))
    assert float(objectives.Contrast().of_vectors(vectors).sum) == pytest.approx(
        float(present + back) / 2, rel=1e-5
    )


def test_measures():
    message = torch.tensor([1, 1, 1, 0, 0, 1])
    right = torch.tensor([1, 1, 0, 0, 1, 1])
    tp = 3
    tn = 1
    fp = 1
    fn = 1
    by_hand = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert matthews(message, right) == pytest.approx(by_hand)
    assert matthews(torch.ones(4), torch.tensor([0, 1, 1, 0])) == 0.0
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 9.0])).tolist() == [2.5, 1.0, 2.5, 4.0]
    x, y = torch.randn(2, 50, generator=generator_from(0))
    assert pearson(x, y) == pytest.approx(
        float(torch.corrcoef(torch.stack((x, y)))[0, 1]), rel=1e-4
    )


# ------------------------------------------------------------------------------------ whole runs

ENDS = ("whole", "cut")
SMALL = {
    "steps": "12",
    "batch": "4",
    "accumulate": "2",
    "context": "40",
    "evaluate_every": "6",
    "save_every": "6",
    "dtype": "float32",
    "tensorboard": "false",
    "data.tokenizer": "char",
}


def shape_of(result):
    """A tiny model's config as a run file has it, with dropout."""
    stacks = {name: replace(stack, dropout=0.1) for name, stack in result.stacks.items()}
    result = replace(result, embed=replace(result.embed, vocab=130), **stacks)
    return serial.to_dict(result)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    numbers = [(f"{i} and {i + 1}", f"{2 * i + 1}") for i in range(60)]
    (folder / "s").write_text("".join(f"{a}\n" for a, _ in numbers))
    (folder / "t").write_text("".join(f"{b}\n" for _, b in numbers))
    (folder / "labels.tsv").write_text(
        "text\tlabel\n"
        + "".join(f"{a}\t{'odd' if i % 2 else 'even'}\n" for i, (a, _) in enumerate(numbers))
    )
    (folder / "tags.conll").write_text(
        "".join(f"{i}\tB-N\nand\tO\n{i + 1}\tB-N\n\n" for i in range(60))
    )
    (folder / "pairs.tsv").write_text("text\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in numbers))
    (folder / "text.txt").write_text("".join(f"{a} is {b}. " for a, b in numbers))
    return folder


def settings(data, objective, **changes):
    examples = {
        "Seq2Seq": {"source": str(data / "s"), "target": str(data / "t")},
        "Classify": str(data / "labels.tsv"),
        "Tag": str(data / "tags.conll"),
        "Contrast": str(data / "pairs.tsv"),
    }
    source = (
        run_config.Examples(train=examples[objective])
        if objective in examples
        else run_config.Data(train=str(data / "text.txt"))
    )
    shape = {"Seq2Seq": tiny.vaswani(), "Span": tiny.t5(), "Prefix": tiny.DECODERS["llama"]}.get(
        objective, BERT
    )
    base = run_config.Run(shape_of(shape), source, run.Train(optimizer=run.AdamW(1e-3)))
    changes = {**SMALL, **changes}
    inside = {
        key.removeprefix("data."): value
        for key, value in changes.items()
        if key.startswith("data.")
    }
    options = {key: value for key, value in changes.items() if not key.startswith("data.")}
    return replace(
        base,
        data=serial.change(base.data, inside, "data"),
        train=serial.change(base.train, {"objective": objective, **options}, "train"),
    )


@pytest.mark.parametrize(
    "objective", ["Masked", "Prefix", "Span", "Seq2Seq", "Classify", "Tag", "Contrast"]
)
def test_a_resumed_run_is_the_undisturbed_one(objective, data, tmp_path, monkeypatch, capfd):
    ended = runs.run(
        settings(data, objective), tmp_path / "whole", sample=lambda *args: f"made of {args[2]}"
    )
    assert ended.step == 12
    assert math.isfinite(ended.valid_loss)
    first = launch.Log.__call__

    def stop(self, step):
        first(self, step)
        if step.index == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(launch.Log, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        runs.run(settings(data, objective), tmp_path / "cut")
    monkeypatch.undo()
    runs.run(settings(data, objective), tmp_path / "cut", resume=True)
    assert tiny.equal_tensors(
        *(dict(store.load(tmp_path / f / "step-000012")[0].named_parameters()) for f in ENDS)
    )
    curves = [
        [(e["loss"], e.get("valid_loss")) for e in callbacks.read_log(tmp_path / f / "log.jsonl")]
        for f in ENDS
    ]
    assert curves[0] == curves[1]
    last = callbacks.read_log(tmp_path / "whole" / "log.jsonl")[-1]
    stderr = capfd.readouterr().err
    # which are not of one length: no share of the machine's peak is known
    sides = objective in ("Span", "Seq2Seq")
    assert ("MFLOP a token on each side" in stderr) == sides != ("of this machine's peak" in stderr)
    if objective == "Classify":
        assert Checkpoint.open(tmp_path / "whole").labels == ("even", "odd")
        assert "matthews" in str(last)
        assert "head over tokens is left out" in stderr
    if objective == "Tag":
        assert Checkpoint.open(tmp_path / "whole").labels == ("B-N", "O")
        assert "valid_f1" in last
    if objective == "Contrast":
        assert "valid_accuracy" in last
    if objective == "Seq2Seq":
        assert " and " in stderr.split("made of ")[1].splitlines()[0]


# -------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "objective, shape, message",
    [
        (
            "Causal",
            BERT,
            r"Causal trains a model of the shape Decoder and this one's is "
            r"Encoder.*train.objective",
        ),
        (
            "Masked",
            tiny.vaswani(),
            r"Masked trains .* Encoder and this one's is "
            r"EncoderDecoder.*Seq2Seq",
        ),
        (
            "Span",
            tiny.DECODERS["llama"],
            r"Span trains .* EncoderDecoder and this one's is Decoder",
        ),
    ],
)
def test_an_objective_that_does_not_fit_the_shape(objective, shape, message, data, tmp_path):
    with mistake(message):
        runs.run(replace(settings(data, objective), model=shape_of(shape)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "objective",
    [
        objectives.Classify(regression=True),
        objectives.Preference(method="ipo"),
        objectives.Rewarded(),
        objectives.Distill(teacher="tiny", alpha=1.0),
    ],
)
def test_label_smoothing_that_would_change_nothing(objective, data, tmp_path):
    chosen = settings(data, "Classify", label_smoothing=0.1)
    chosen = replace(chosen, train=replace(chosen.train, objective=objective))
    with mistake("train.label_smoothing changes nothing in the loss of .*leave it out"):
        runs.run(chosen, tmp_path / "run")


def test_data_of_the_wrong_kind(data, tmp_path):
    query = settings(data, "Masked")
    wrong = replace(query, data=run_config.Examples(str(data / "labels.tsv")))
    with mistake(
        r"Masked learns from running text; set \[data\] type = "
        r'"Data"'
    ):
        runs.run(wrong, tmp_path / "run")
    wrong = replace(settings(data, "Classify"), data=query.data)
    with mistake(
        r"Classify learns from examples; set \[data\] type = "
        r'"Examples"'
    ):
        runs.run(wrong, tmp_path / "run")


@pytest.mark.parametrize(
    "objective, message", [("Masked", "has no mask token"), ("Span", "has no sentinels")]
)
def test_a_tokenizer_that_lacks_what_the_objective_needs(objective, message, data, tmp_path):
    from glassformer.core.tokenizer import train as train_tokenizer

    train_tokenizer("char", ["".join(map(chr, range(32, 127)))]).save(tmp_path)
    with mistake(message):
        runs.run(settings(data, objective, **{"data.tokenizer": str(tmp_path)}), tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("masked", "seq2seq") else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_compiled_is_as_written_out(name):
    chosen, shape, batch = CASES[name]
    model = build_model(replace(shape, pool=None) if name == "masked" else shape, seed=1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    for low in (0, 2, 1):
        piece = batch.rows(low, low + 2)
        right, result = (gradients(runner, piece, chosen, 1) for runner in (model, compiled))
        assert result.loss == pytest.approx(right.loss, rel=1e-5)
        assert result.count == right.count
    # how many documents there are is not known before: the pool stays outside
    if not hasattr(model, "pool"):
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_the_compiled_loss_is_the_loss():
    draw = generator_from(0)
    results = []
    for to_grad in (None, torch.compile(loss.logits_to_grad, backend="aot_eager")):
        draw.manual_seed(0)
        hidden, table = (torch.randn(n, 16, generator=draw).requires_grad_() for n in (12, 40))
        targets = torch.randint(-1, 40, (12,), generator=draw)
        total = loss.cross_entropy(hidden, targets, table, None, 5.0, 0.1, to_grad)
        total.backward()
        results.append((total.detach(), hidden.grad, table.grad))
    for result, second in zip(*results, strict=True):
        assert_close(result, second)


# --------------------------------------------------------------------- more from few examples


def dropping(shape, seed=1):
    """The model with dropout in its blocks."""
    return build_model(
        replace(shape, encoder=replace(shape.encoder, dropout=0.3)),
        seed=seed,
    )


def test_two_readings_that_should_agree_by_hand():
    """R-Drop's loss: the mean of two cross-entropies, and alpha / 4 of the divergences both
    ways."""
    batch = CASES["classify"][2]
    model = dropping(CLASSIFIER)
    torch.manual_seed(7)
    item, second = (
        model(
            batch.tokens,
            pos=batch.pos,
            document_ids=batch.document_ids,
            segments=batch.segments,
            logits="none",
        ).pooled
        for _ in range(2)
    )
    assert not torch.equal(item, second)
    right = (F.cross_entropy(item, batch.labels) + F.cross_entropy(second, batch.labels)) / 2
    p = item.log_softmax(-1)
    q = second.log_softmax(-1)
    pair = F.kl_div(q, p, reduction="batchmean", log_target=True) + F.kl_div(
        p, q, reduction="batchmean", log_target=True
    )
    torch.manual_seed(7)
    loss = objectives.Classify(rdrop=3.0).loss(model, batch)
    assert_close(loss.sum / loss.count, right + 3.0 / 4 * pair)
    model.eval()
    plain = objectives.Classify().loss(model, batch).sum
    # validation
    assert torch.equal(
        objectives.Classify(rdrop=3.0, adversarial=1.0).loss(model, batch).sum, plain
    )


def test_a_push_goes_uphill_by_its_length_in_each_document_alone():
    batch = CASES["classify"][2]
    model = build_model(CLASSIFIER, seed=1)
    tape = Tape("*.embed", graph=True)
    plain = F.cross_entropy(forward(model, batch, tape).pooled, batch.labels, reduction="sum")
    grad = torch.autograd.grad(plain, tape["encoder.embed"])[0]
    embedded = tape["encoder.embed"].detach()
    step = ascent(grad, embedded, batch.pos, len(batch.labels))
    documents = 0
    for row in range(len(step)):
        for number in range(int(batch.document_ids[row].max()) + 1):
            individual = batch.document_ids[row] == number
            assert step[row, individual].norm() == pytest.approx(
                float(embedded[row, individual].norm(dim=-1).mean()), rel=1e-5
            )
            assert (
                F.cosine_similarity(
                    step[row, individual].flatten(), grad[row, individual].flatten(), dim=0
                )
                > 0.9999
            )
            documents += 1
    assert documents == len(batch.labels)
    assert not step[batch.pos < 0].any()
    result = objectives.Classify(adversarial=0.1).loss(model, batch).sum.detach()
    moved = forward(model, batch, Tape(edits={"*.embed": lambda path, x: x + 0.1 * step})).pooled
    harder = F.cross_entropy(moved, batch.labels, reduction="sum")
    assert_close(result, (plain.detach() + harder.detach()) / 2)
    assert harder > plain


def test_a_frozen_trunk_is_pushed_too():
    model = build_model(CLASSIFIER, seed=1)
    batch = CASES["classify"][2]
    for path, weight in model.named_parameters():
        weight.requires_grad_(path.startswith("pool."))
    assert math.isfinite(gradients(model, batch, objectives.Classify(adversarial=0.5), 1).loss)
    assert {path for path, weight in model.named_parameters() if weight.grad is not None} == {
        path for path, _ in model.named_parameters() if path.startswith("pool.")
    }


def test_nothing_can_agree_without_dropout():
    chosen = run_config.Run(
        data=run_config.Examples("a.tsv"), train=run.Train(objective=objectives.Classify(rdrop=1.0))
    )
    with mistake(r"this model has none; set encoder.dropout, or rdrop = 0"):
        run_plan.RunPlan(chosen, CLASSIFIER).check(CLASSIFIER)
    run_plan.RunPlan(chosen, CLASSIFIER).check(dropping(CLASSIFIER).config)


def test_sizes_below_nothing_are_refused():
    with mistake(r"Classify.adversarial is -1; give 0 or more"):
        objectives.Classify(adversarial=-1)
    with mistake(r'Classify.rdrop: "nan" is not a finite number'):
        objectives.Classify(rdrop=math.nan)


# ------------------------------------------------------------------------------------ one's own

OWN = Path(__file__).parents[1] / "own_objective.py"


RUN_FILE = """
[model]
recipe = "glass/encoder-1m"
dim = 32
encoder.depth = 1
[data]
type = "Examples"
train = "{folder}/pairs.tsv"
tokenizer = "char"
[train]
objective = {{ type = "Prefer" }}
batch = 4
context = 64
evaluate_every = 4
optimizer = {{ type = "AdamW", lr = 5e-3 }}
"""


def test_an_objective_of_ones_own_is_one_class(tmp_path, monkeypatch, terminal):
    """Named in a run file, it reads its own parts, trains, is validated, resumes and refuses what
    it does not fit."""
    monkeypatch.setattr(serial, "_MEMBERS", dict(serial._MEMBERS))
    monkeypatch.setattr(extend, "_USED", set())
    pairs = "".join(f"{i} and {i} is {2 * i}\t{i} and {i} is {2 * i + 1}\n" for i in range(60))
    (tmp_path / "pairs.tsv").write_text("better\tworse\n" + pairs)
    (tmp_path / "run.toml").write_text(RUN_FILE.format(folder=tmp_path))
    line = f"train {tmp_path}/run.toml --out {tmp_path}/run --dtype float32"
    notes = terminal.refused(f"{line} --steps 8")
    assert '"type" is "Prefer"' in notes
    assert "--use FILE" in notes
    line += f" --use {OWN} --train.objective.margin 0.5"
    terminal(f"{line} --steps 8")
    terminal(f"{line} --steps 12 --resume")
    rows = callbacks.read_log(tmp_path / "run" / "log.jsonl")
    valid = [row["valid_preferred"] for row in rows if "valid_loss" in row]
    assert len(valid) == 3
    assert all(0 <= share <= 1 for share in valid)
    model, _ = glassformer.load(tmp_path / "run")
    assert model.config.pool.labels == 1
    assert model.config.head is None
    options = ["--out", tmp_path / "no", "--use", OWN, "--data.columns", "{best = 'x'}"]
    notes = terminal.refused(f"train {tmp_path}/run.toml", *options)
    assert 'There is no part "best"' in notes
    with mistake("has a Masked already"):
        config.member(training.Objective)(type("Masked", (training.Objective,), {}))
