"""A planted direction is recovered, its control is at chance, accuracies are scikit-learn's on the values
of `look`; what is steered moves by exactly the direction; docs/probes.md shows what is printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import glassformer
import tiny
from glassformer import config as c
from glassformer.cli import main
from glassformer.core.nn import build_model
from glassformer.formats import store
from glassformer.sight import edits
from glassformer.sight.linear_probes import Probe, _split
from mistakes import mistake
from seeding import generator_from
from served import tokenizer as tokenizer_of
from served import worded

pytest.importorskip("sklearn")
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GLASSFORMER_DATA", ROOT.parent / "shared/data"))
PAGE = (ROOT / "docs/probes.md").read_text(encoding="utf-8")
WORDS = [chr(97 + at) for at in range(26)]


class Letters:
    """A tokenizer of single letters and spaces, a token each."""

    def __init__(self, first):
        self.ids = {letter: at for at, letter in enumerate(first)}

    def encode(self, text):
        return [self.ids[letter] for letter in text]

    bos = eos = None
    size = 0  # no names for messages


def planted(dim=16, letters=40):
    """Embeddings of noise and, of the first half of the letters, ``direction``; blocks add nothing."""
    block = c.Block(c.Attention(1), c.MLP(8))
    cfg = c.Decoder(dim, 16, c.Embed(letters), c.Stack(1, (block,), c.Rotary()), c.Head())
    model = tiny.model(cfg)
    draw = generator_from(0)
    direction = torch.nn.functional.normalize(torch.randn(dim, generator=draw), dim=0)
    with torch.no_grad():
        for weight in model.decoder.parameters():
            weight.zero_()
        noise = 0.05 * torch.randn(letters, dim, generator=draw)
        noise[: letters // 2] += 2 * direction
        model.embed.token.weight.copy_(noise)
    alphabet = [chr(0x4E00 + at) for at in range(letters)]
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(alphabet, int(rng.integers(1, 9)))) for _ in range(600)]
    labels = ["plain" if alphabet.index(text[-1]) >= letters // 2 else "planted" for text in texts]
    return model, Letters(alphabet), texts, labels, direction


@pytest.mark.parametrize("method", ["logistic", "ridge"])
def test_a_planted_direction_is_found_and_the_control_is_at_chance(method):
    model, tokenizer, texts, labels, direction = planted()
    probe = glassformer.probe(model, tokenizer, texts, labels, method=method, shuffles=8, seed=3)
    assert probe.addresses == ["decoder.embed", "decoder.blocks.0.resid"]
    assert probe.labels == ["plain", "planted"] and probe.accuracy == [1.0, 1.0]
    chance = np.array(probe.shuffled)
    assert abs(chance.mean() - 0.5) < 0.06 and chance.max() < 0.7
    for address in probe.addresses:
        toward = probe.tensor(address, "direction", "planted")
        assert torch.cosine_similarity(toward, direction, dim=0) > 0.99
        assert (
            torch.cosine_similarity(probe.tensor(address, "direction", "plain"), -toward, dim=0)
            > 0.999
        )
    # strength 1 leads from the mean of all texts to the label's, so the label's scores have mean 1
    side, _ = _split_of(texts, labels, 3)
    scores = [float(probe.score(model, tokenizer, x)[-1]) for x, _ in side]
    inside = [score for score, (_, label) in zip(scores, side, strict=True) if label == "planted"]
    assert np.mean(scores) == pytest.approx(0, abs=1e-4)
    assert np.mean(inside) == pytest.approx(1, abs=1e-4)


def test_nothing_linear_is_left_where_a_direction_is_projected_out():
    from sklearn.linear_model import LogisticRegression

    model, tokenizer, texts, labels, _ = planted()
    path = "decoder.blocks.0.resid"
    probe = glassformer.probe(model, tokenizer, texts, labels, shuffles=1)
    accuracy = []
    for lines in ([], [edits.project_out(path, probe)], [edits.project_out(path, probe, random=1)]):
        sides = [
            (
                np.stack([_state(model, tokenizer, x, path, "last", lines) for x, _ in side]),
                [label for _, label in side],
            )
            for side in _split_of(texts, labels, 0)
        ]
        accuracy.append(LogisticRegression(C=0.01, max_iter=10_000).fit(*sides[0]).score(*sides[1]))
    assert accuracy[0] == accuracy[2] == 1.0 and accuracy[1] < 0.65


def _split_of(texts, labels, seed):
    """The texts that a probe fits and holds out, each with its label."""
    pairs = sorted(dict.fromkeys(zip(texts, labels, strict=True)), key=lambda x: len(x[0]))
    _, numbers = np.unique([label for _, label in pairs], return_inverse=True)
    return [[pairs[at] for at in side] for side in _split(numbers, seed)]


FAMILIES = {name: tiny.ALL[name] for name in ("llama", "gpt2", "bert", "t5", "mixtral", "gru")}


@pytest.mark.parametrize("position", ["last", "mean"])
@pytest.mark.parametrize("name", FAMILIES)
def test_accuracy_is_scikit_learns_on_the_values_of_look(name, position):
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    cfg = worded(FAMILIES[name])
    model = tiny.model(cfg)
    tokenizer = tokenizer_of("wordpiece" if isinstance(cfg, c.Encoder) else "bpe")
    rng = np.random.default_rng(1)
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "log", "and"]
    texts = [" ".join(rng.choice(words, int(rng.integers(2, 6)))) for _ in range(90)]
    labels = [str(text.split().index(max(text.split())) % 3) for text in texts]
    patterns = ["*.0.*.z", "*.resid"] if name != "gru" else []
    patterns = [x for x in patterns if x != "*.0.*.z" or name != "t5"]
    for method, model_of in (("logistic", LogisticRegression), ("ridge", RidgeClassifier)):
        probe = glassformer.probe(
            model,
            tokenizer,
            texts,
            labels,
            addresses=patterns,
            position=position,
            method=method,
            shuffles=1,
        )
        sides = _split_of(*_by_length(model, tokenizer, texts, labels), 0)
        for address, accuracy in zip(probe.addresses, probe.accuracy, strict=True):
            (x, y), (x_held, y_held) = (
                (
                    np.stack([_state(model, tokenizer, t, address, position) for t, _ in side]),
                    [label for _, label in side],
                )
                for side in sides
            )
            options = {"max_iter": 10_000} if method == "logistic" else {}
            reference = make_pipeline(StandardScaler(), model_of(**options)).fit(x, y)
            assert accuracy == pytest.approx(reference.score(x_held, y_held), abs=1e-12)


def _ids(model, tokenizer, text):
    from glassformer.sight.inputs import token_ids

    return token_ids(model, tokenizer, text)


def _by_length(model, tokenizer, texts, labels):
    """In the order of their tokens, as `_split_of` orders by characters."""
    pairs = dict.fromkeys(zip(texts, labels, strict=True))
    rows = sorted(pairs, key=lambda pair: _ids(model, tokenizer, pair[0]).shape[1])
    return [Sized(x, at) for at, (x, _) in enumerate(rows)], [label for _, label in rows]


class Sized(str):
    """A text whose length is its place."""

    def __new__(cls, text, place):
        instance = super().__new__(cls, text)
        instance.place = place
        return instance

    def __len__(self):
        return self.place


def _state(model, tokenizer, text, address, position, lines=()):
    """What a probe reads of one text, by `look`; of an encoder-decoder as its encoder reads it."""
    text, source = str(text), {"edits": lines}
    if model.config.has_source:
        source, text = {"source": text}, [0]
    value = glassformer.look(model, tokenizer, text, address, **source)[address][0].double()
    rows = value.movedim(0, 1) if value.ndim == 3 else value  # (T, ..) of (H, T, D)
    rows = rows.flatten(1)
    return (rows[-1] if position == "last" else rows.mean(0)).numpy()


def fitted(name="llama", addresses=(), labels=2, **options):
    """A model, its tokenizer, and a probe of labels that the last word has."""
    cfg = worded(tiny.ALL[name])
    model = tiny.model(cfg)
    tokenizer = tokenizer_of("bpe")
    words = ["cat", "dog", "mat", "log", "sat"]
    texts = [f"{a} {b} on the {last}" for a in words for b in words for last in words[:labels]]
    probe = glassformer.probe(
        model,
        tokenizer,
        texts,
        [text.split()[-1] for text in texts],
        addresses=addresses,
        **options,
    )
    return model, tokenizer, probe


@pytest.mark.parametrize("path", ["decoder.blocks.0.resid", "decoder.blocks.1.attn.z"])
def test_steering_adds_exactly_the_direction_and_projecting_out_leaves_the_mean(path, tmp_path):
    model, tokenizer, probe = fitted(addresses=[path], shuffles=1)
    file = probe.save(tmp_path / "probe.safetensors")
    text = "the cat sat on the dog"
    plain = glassformer.look(model, tokenizer, text, path)[path]
    shape = (*plain.shape[1:2], 1, *plain.shape[3:]) if plain.ndim == 4 else plain.shape[-1:]
    direction = probe.tensor(path, "direction").view(shape)

    def value_under(line):
        return glassformer.look(model, tokenizer, text, path, edits=[line])[path]

    assert torch.equal(value_under(f'steer("{path}", "{file}", 2.5)'), plain + 2.5 * direction)
    assert torch.equal(
        value_under(edits.steer(path, probe, -1.5, positions=(1,)))[..., 1, :],
        (plain + -1.5 * direction)[..., 1, :],
    )
    scores = probe.score(model, tokenizer, text)
    moved = probe.score(model, tokenizer, text, edits=[f'steer("{path}", "{file}", 2.5)'])
    assert_close(moved - scores, torch.full_like(scores, 2.5), rtol=1e-5, atol=1e-5)
    gone = probe.score(model, tokenizer, text, edits=[f'project_out("{path}", "{file}")'])
    assert_close(gone, torch.zeros_like(gone), rtol=0, atol=1e-5)
    removed = value_under(f'project_out("{path}", "{file}")') - plain  # along the direction alone
    along = (removed * direction).sum() / direction.square().sum()
    axis = 2 if plain.ndim == 4 else 1
    rows = removed.movedim(axis, 1).flatten(2)[0]
    unit = torch.nn.functional.normalize(direction.flatten(), dim=0)
    assert_close(rows, (rows @ unit)[:, None] * unit, rtol=1e-4, atol=1e-6)
    assert bool(along.isfinite())
    # the control is another direction of the same length, the same each time
    drawn = [value_under(f'steer("{path}", "{file}", random={seed})') - plain for seed in (0, 0, 1)]
    lengths = [x.movedim(axis, 1).flatten(2)[0].norm(dim=-1) for x in drawn]
    assert_close(
        lengths[0], torch.full_like(lengths[0], float(direction.norm())), rtol=1e-4, atol=0
    )
    assert torch.equal(drawn[0], drawn[1]) and not torch.allclose(drawn[0], drawn[2])
    assert (
        repr(edits.parse(f'steer("{path}", "{file}", 2.5)'))
        == f'steer("{path}", "{file}", scale=2.5)'
    )


def test_a_pattern_steers_each_address_with_its_own_direction():
    model, tokenizer, probe = fitted(shuffles=1)
    path = "decoder.blocks.*.resid"
    separate = (
        edits.steer("decoder.blocks.0.resid", probe),
        edits.steer("decoder.blocks.1.resid", probe),
    )
    logits = [
        glassformer.look(model, tokenizer, "the cat", "logits", edits=x)["logits"]
        for x in ([edits.steer(path, probe)], separate)
    ]
    assert torch.equal(*logits)


def test_more_than_two_labels_have_a_direction_each():
    model, tokenizer, probe = fitted(labels=4, shuffles=2)
    assert len(probe.labels) == 4 and probe.accuracy[-1] > max(probe.shuffled[-1])
    text, path = "dog mat on the cat", "decoder.embed"
    by_label = {
        label: float(probe.score(model, tokenizer, text, address=path, toward=label)[-1])
        for label in probe.labels
    }
    assert max(by_label, key=by_label.get) == "cat"


def test_a_probe_comes_back_from_its_file_and_is_the_same_each_time(tmp_path):
    probe = fitted(shuffles=2, seed=5)[2]
    again = fitted(shuffles=2, seed=5)[2]
    loaded = Probe.load(probe.save(tmp_path / "p.safetensors"))
    for copy in (again, loaded):
        assert copy.to_dict() == probe.to_dict()
        for path, tensors in probe.tensors_of.items():
            assert all(torch.equal(tensors[x], copy.tensors_of[path][x]) for x in tensors)
    assert loaded.table() == probe.table() and "best of them" in loaded.table()[-1]
    assert fitted(shuffles=2, seed=6)[2].to_dict() != probe.to_dict()
    for kind in ("html", "csv"):
        assert "shuffled" in probe.save(tmp_path / f"p.{kind}").read_text()


def test_the_best_of_shuffles_counts_its_best_address():
    zeros = {"mean": torch.zeros(2), "direction": torch.zeros(2, 2)}
    probe = Probe(
        ["a", "b"],
        ["0", "1"],
        [0.6, 0.9],
        [[0.5, 0.7], [0.4, 0.3]],
        0.5,
        [3, 1],
        "ridge",
        "last",
        "",
        "texts",
        {"a": zeros, "b": zeros},
    )
    assert probe.best == "b"
    assert list(probe.records()[1]) == [
        ("a", 0.6, 0.6, 0.7),
        ("b", 0.9, 0.35, 0.4),
        ("the best of them", 0.9, 0.6, 0.7),
    ]


def test_bad_input_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, tokenizer, probe = fitted(shuffles=1)
    file = probe.save("probe.safetensors")
    several, halves = [f"{a} {b}" for a in "abcd" for b in "abcd"], [0, 1] * 8

    def refuses(sentence, texts=several, labels=halves, **options):
        with mistake(re.escape(sentence)):
            glassformer.probe(model, tokenizer, texts, labels, **options)

    refuses("needs 4", ["a cat", "a dog"] * 5, [0, 1] * 5)  # two texts, again and again
    refuses("one label", labels=[1] * 16)
    refuses("16 texts and 2 labels", labels=[0, 1])
    refuses("logits has no numbers for each token", addresses=["logits"])
    refuses("pattern has no numbers", addresses=["*.pattern"])
    refuses("No value is called", addresses=["*.redis"])
    refuses('no method "lda"', method="lda")
    refuses('position is "first"', position="first")
    refuses("shuffles is 0", shuffles=0)

    def steers(sentence, line, of=model):
        with mistake(re.escape(sentence)):
            glassformer.look(of, tokenizer, "a", "logits", edits=[line])

    resid = "decoder.blocks.0.resid"
    steers("another model", f'steer("{resid}", "{file}")', build_model(model.config, seed=9))
    steers("decoder.blocks.0.mid", f'steer("decoder.blocks.0.mid", "{file}")')
    steers('no label "bird"; it has cat, dog', f'steer("{resid}", "{file}", toward="bird")')
    steers("cannot be read", f'steer("{resid}", "none.safetensors")')
    store.save(model, "model", tokenizer)
    steers("no probe", f'steer("{resid}", "model/model.safetensors")')
    Path("torn.safetensors").write_bytes(Path(file).read_bytes()[:200])
    steers("torn.safetensors", f'steer("{resid}", "torn.safetensors")')


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    texts = [f"{a} {b} {z}" for a in "abcd" for b in "abcd" for z in "xy"]
    Path("t.csv").write_text("label,text\n" + "".join(f"{x[-1]},{x}\n" for x in texts))
    assert main(["probe", "tiny", "t.csv", "--json", "--shuffles", "2"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["labels"] == ["x", "y"] and record["position"] == "last"
    assert len(record["shuffled"][0]) == 2 and record["texts"] == [24, 8]
    Path("one.tsv").write_text("a cat\t1\na dog\t1\n")
    Path("none.tsv").write_text("a cat\t\n")
    Path("pair.tsv").write_text("text\tsecond\tlabel\n" + "a\tb\t0\nc\td\t1\n")
    for words, sentence in (
        (["one.tsv"], "one label"),
        (["none.tsv"], "has no label"),
        (["pair.tsv"], "pairs of texts"),
        (["t.csv", "--out", "p.txt"], "must end in .safetensors"),
        (["t.csv", "--method", "lda"], "lda"),
        (["away.csv"], "away.csv"),
    ):
        assert main(["probe", "tiny", *words]) != 0
        assert sentence in capsys.readouterr().err
    assert not Path("p.txt").exists()


FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(not (DATA / "stories260K").is_dir(), reason="needs stories260K")
def test_the_page_shows_what_is_printed(tmp_path, monkeypatch, capsys):
    """Each block of docs/probes.md in order."""
    from test_sight import close

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    names, expected, count, before = {}, None, 0, []
    for language, block in FENCE.findall(PAGE):
        if language == "python":
            code, output = block.replace("DATA/", f"{DATA}/"), io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(code, "probes.md", "exec"), names)
            expected = output.getvalue()
        elif block.startswith("$ "):
            for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = piece.partition("\n")
                words = shlex.split(command)
                words = [*before, *words[1:]] if words[0] == "..." else words[1:]
                before = words[:3]
                assert main([str(DATA / x) if x == "stories260K" else x for x in words]) == 0
                printed = capsys.readouterr()
                close(printed.err + printed.out, output)
                count += 1
        elif expected is not None:
            close(expected, block)
            expected, count = None, count + 1
    assert count == 9
    prompt = re.search(r'"prompt": "(.*?)"', PAGE)[1]
    for strength, text in re.findall(r"^\| (?:none|`\{.*?(-?\d)\}`) \| `(.*)` \|$", PAGE, re.M):
        line = f'steer("decoder.blocks.4.resid", "who.safetensors", {strength or 0})'
        words = ["generate", str(DATA / "stories260K"), prompt, "--temperature", "0"]
        assert main([*words, "--max-new", "12", "--edit", line]) == 0
        assert capsys.readouterr().out.rstrip("\n") == text
