"""The best places of a corpus are those that reading every row by itself finds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer.core.nn import Tape
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.sight import neurons, top_activations
from mistakes import SENTENCES, mistake

TEXTS = [
    "The cat sat on the mat.",
    "",
    "A dog",
    "and a very long sentence that is cut into rows",
    "zebra " * 3,
]
TOKENIZER = train_tokenizer("byte", specials=("<s>", "</s>"))


def wordy(name):
    """A family with a vocabulary of bytes."""
    cfg = tiny.ALL[name]
    cfg = replace(cfg, embed=replace(cfg.embed, vocab=300))
    if getattr(cfg, "source_embed", None):
        cfg = replace(cfg, source_embed=replace(cfg.source_embed, vocab=300))
    return tiny.model(cfg).double()


def rows(model, length):
    bos, eos = TOKENIZER.bos, TOKENIZER.eos
    bounds = {c.Decoder: ([bos], []), c.Encoder: ([bos], [eos]), c.EncoderDecoder: ([], [eos])}[
        type(model.config)
    ]
    for text in TEXTS:
        ids, inside = list(text.encode()), length - len(bounds[0]) - len(bounds[1])
        for low in range(0, len(ids), inside):
            yield torch.tensor([[*bounds[0], *ids[low : low + inside], *bounds[1]]])


def by_hand(model, path, index, expert):
    """The best value of each row and where, one row at a time, one token at a time."""
    results = []
    for number, row in enumerate(rows(model, 16)):
        tape = Tape("*")
        with torch.no_grad():
            if isinstance(model.config, c.EncoderDecoder):
                model.encode(row, tape=tape)
            else:
                model(row, tape=tape)
        values = []
        for at, token in enumerate(row[0].tolist()):
            if token in (TOKENIZER.bos, TOKENIZER.eos):
                continue
            vector = tape[path][0, at]
            if path.endswith("router"):
                values.append((vector.softmax(0)[index].item(), number, at))
            elif expert is None:
                values.append((vector[index].item(), number, at))
            else:
                slots = tape[path.replace("hidden", "chosen")][0, at].tolist()
                values += [
                    (vector[slot, index].item(), number, at)
                    for slot, item in enumerate(slots)
                    if item == expert
                ]
        results += [max(values)] if values else []
    return sorted(results, reverse=True)


FAMILIES = {
    "gpt2": "decoder.blocks.1.ffn.hidden[5]",
    "llama": "decoder.blocks.0.ffn.gate[63]",
    "mixtral": "decoder.blocks.1.ffn.router[2]",
    "deepseek": "decoder.blocks.1.ffn.hidden[3,9]",
    "glass": "decoder.blocks.1.resid[0]",
    "gru": "decoder.cells.1.state[4]",
    "bert": "encoder.blocks.1.ffn.hidden[60]",
    "t5": "encoder.blocks.0.ffn.hidden[1]",
    "two vocabularies": "encoder.blocks.1.ffn.hidden[1]",
    "onward": "encoder.blocks.1.attn.write[31]",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_best_places_are_found(name, monkeypatch):
    monkeypatch.setattr(neurons, "TOKENS", 40)  # several passes, with padding
    model = wordy(name)
    query = FAMILIES[name]
    path, numbers = query[:-1].split("[")
    *expert, index = map(int, numbers.split(","))
    right = by_hand(model, path, index, expert[0] if expert else None)
    calls: list[int] = []
    fields = {
        "context": 16,
        "top": 4,
        "around": 3,
        "progress": lambda ids, of: calls.append(ids + of),
    }
    (result,) = top_activations(model, TOKENIZER, TEXTS, [query], **fields)
    assert [(hit.row, hit.position) for hit in result.hits] == [
        (row, at) for _, row, at in right[:4]
    ]
    assert [hit.value for hit in result.hits] == pytest.approx(
        [value for value, *_ in right[:4]], abs=1e-9
    )
    every = list(rows(model, 16))
    assert result.read == sum(row.shape[1] for row in every) == calls[-1] and len(calls) > 1
    for hit in result.hits:
        ids = every[hit.row][0].tolist()
        assert ids[hit.position] == hit.token == ord(hit.piece)
        inside = bytes(number for number in ids if number < 256).decode()
        assert (
            f"{hit.before}{hit.piece}{hit.after}".replace("<s>", "").replace("</s>", "") in inside
        )


def test_the_least_and_the_mean():
    model = wordy("gpt2")
    low, high = (
        top_activations(
            model, TOKENIZER, TEXTS, ["decoder.blocks.0.ffn.pre[3]"], top=1, lowest=lowest
        )[0]
        for lowest in (True, False)
    )
    values = []
    for row in rows(model, tiny.CONTEXT):
        tape = Tape("decoder.blocks.0.ffn.pre")
        with torch.no_grad():
            model(row, tape=tape)
        values.append(tape["decoder.blocks.0.ffn.pre"][0, 1:, 3])
    every = torch.cat(values)
    assert (
        low.hits[0].value == pytest.approx(every.min().item())
        and high.hits[0].value == every.max().item()
    )
    assert high.mean == pytest.approx(every.mean().item()) and high.tokens == len(every)
    assert high.above_zero == (every > 0).double().mean().item()


def test_an_experts_neuron_has_a_value_only_where_it_was_chosen():
    model, block = wordy("deepseek"), "decoder.blocks.1.ffn"
    (low,) = top_activations(model, TOKENIZER, TEXTS, [f"{block}.hidden[3,9]"], lowest=True, top=50)
    values = []
    for row in rows(model, tiny.CONTEXT):
        tape = Tape(f"{block}.hidden", f"{block}.chosen")
        with torch.no_grad():
            model(row, tape=tape)
        local = tape[f"{block}.chosen"][0, 1:] == 3
        values += tape[f"{block}.hidden"][0, 1:, :, 9][local].tolist()
    assert low.tokens == len(values) < low.read and low.hits[0].value == pytest.approx(min(values))
    assert low.mean == pytest.approx(sum(values) / len(values))
    assert all(hit.value in [pytest.approx(value) for value in values] for hit in low.hits)


def test_a_limit_and_bounded_memory():
    """Memory does not grow with the corpus: no text is requested after the limit."""
    taken: list[int] = []

    def texts():
        for number in range(1000):
            taken.append(number)
            yield "a" * 50

    (result,) = top_activations(
        wordy("gpt2"), TOKENIZER, texts(), ["decoder.blocks.0.ffn.hidden[0]"], limit=200
    )
    assert result.read == 200 and len(taken) < 6


@pytest.mark.parametrize("name, query, words", SENTENCES["neurons"])
def test_one_clear_sentence(name, query, words):
    with mistake(words):
        top_activations(wordy(name), TOKENIZER, TEXTS, [query])


def test_nothing_to_read():
    with mistake("texts are empty"):
        top_activations(wordy("gpt2"), TOKENIZER, [""], ["decoder.blocks.0.ffn.hidden[0]"])
    with mistake("No neuron is named"):
        top_activations(wordy("gpt2"), TOKENIZER, TEXTS, [])


def test_the_command(tmp_path, terminal):
    store.save(
        wordy("gpt2").float(), tmp_path / "model", train_tokenizer("byte", []), layout="glassformer"
    )
    (tmp_path / "text.txt").write_text("The cat sat on the mat.\nThe dog did not. " * 20)
    names = [
        f"decoder.blocks.{place}[{n}]" for place, n in (("0.ffn.hidden", 3), ("1.ffn.hidden", 4))
    ]
    line = (
        f"neurons {tmp_path}/model {tmp_path}/text.txt --top 2 --neuron {' --neuron '.join(names)}"
    )
    data = terminal.json(line)
    assert [(item["name"], len(item["hits"])) for item in data] == [(name, 2) for name in names]
    output = terminal(line)
    assert f"«{data[0]['hits'][0]['piece']}»" in output and "above zero" in output
