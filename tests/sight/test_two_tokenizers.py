"""A model whose source has a tokenizer of its own reads and names a source by it, whoever looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from glassformer import config as c
from glassformer import families as recipes
from glassformer import generation
from glassformer import sight as inspection
from glassformer.core.config import serial
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.serve.page.fields import RunFields
from glassformer.serve.page.models import Models
from glassformer.serve.page.runs import TraceCache
from glassformer.sight import streams
from glassformer.sight.edits import patch, swap_token

GERMAN, OTHER, ENGLISH = "eine katze sitzt da", "ein hund sitzt da", "a cat"
PATH = "decoder.blocks.0.cross.pattern"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    reads = train_tokenizer("words", [GERMAN, OTHER, "nie nimmer"])
    writes = train_tokenizer("words", [ENGLISH, "dogs"])
    sizes = {"dim": 32, "encoder.depth": 1, "decoder.depth": 1, "embed.vocab": writes.size}
    cfg: Any = serial.change(recipes.find("glass/pair-3m"), sizes)
    cfg = replace(cfg, source_embed=c.Embed(reads.size, dim=16), init=c.Init(0.3, 1.0, "plain"))
    to: Path = tmp_path_factory.mktemp("two") / "pair"
    store.save(tiny.model(cfg), to, writes, source_tokenizer=reads)
    return to


@pytest.fixture(scope="module")
def loaded(folder):
    """The model, its tokenizer, and the source as the source's own tokenizer writes it."""
    model, tokenizer = store.load(folder)
    assert (
        tokenizer is not None
        and tokenizer.source_tokenizer is not None
        and tokenizer.for_source is not tokenizer
    )
    reads = tokenizer.for_source
    assert reads.eos is not None
    ids = [*reads.encode(GERMAN), reads.eos]
    assert ids != [*tokenizer.encode(GERMAN), tokenizer.eos]
    return model, tokenizer, ids


def saliency(source, model, tokenizer):
    result = inspection.saliency(model, tokenizer, ENGLISH, source=source, steps=2).to_dict()
    assert [item["piece"] for item in result["source"]] == [*GERMAN.split(), "</s>"]
    return result


ASKED: dict[str, Callable[..., Any]] = {
    "look": lambda source, *m: inspection.look(*m, ENGLISH, "logits", source=source)[
        "logits"
    ].tolist(),
    "trace": lambda source, *m: inspection.trace(*m, ENGLISH, source)[PATH].tolist(),
    "lens": lambda source, *m: inspection.logit_lens(*m, ENGLISH, source=source).to_dict(),
    "attribution": lambda source, *m: inspection.attribute(*m, ENGLISH, source=source).to_dict(),
    "saliency": saliency,
    "predictions": lambda source, *m: inspection.predictions(*m, ENGLISH, 2, source),
    "tokens": lambda source, *m: inspection.read_tokens(*m, ENGLISH, source),
    "generate": lambda source, *m: (
        generation.generate(
            m[0],
            m[1],
            source if isinstance(source, str) else [source],
            max_new=4,
            temperature=0.0,
            seed=1,
        )
        .run()
        .to_dict()
    ),
    "search": lambda source, *m: generation.beam(
        *m, source if isinstance(source, str) else [source], beams=2, max_new=4
    )[0],
    "edits": lambda source, *m: inspection.look(
        *m,
        ENGLISH,
        "logits",
        source=source,
        edits=[
            swap_token(
                1, "hund" if isinstance(source, str) else m[1].for_source.id("hund"), side="source"
            )
        ],
    )["logits"].tolist(),
    "patch": lambda source, *m: inspection.look(
        *m,
        ENGLISH,
        "logits",
        source=GERMAN,
        edits=[patch("decoder.blocks.0.cross.z", ENGLISH, source=source)],
    )["logits"].tolist(),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_source_is_read_by_its_own_tokenizer(loaded, name):
    model, tokenizer, ids = loaded
    assert ASKED[name](GERMAN, model, tokenizer) == ASKED[name](ids, model, tokenizer)


def test_its_tokens_are_named_by_it(loaded):
    model, tokenizer, ids = loaded
    named = [*GERMAN.split(), "</s>"]
    displayed = [f"·{word}" for word in named[:-1]] + named[-1:]
    assert inspection.look(model, tokenizer, ENGLISH, PATH, source=GERMAN).source == displayed
    assert inspection.read_tokens(model, tokenizer, ENGLISH, GERMAN)["source"] == {
        "ids": ids,
        "pieces": named,
    }
    trace = inspection.trace(model, tokenizer, ENGLISH, GERMAN)
    assert trace.to_dict()["source"] == {"ids": ids, "pieces": named}
    assert 'key 1 "·katze"' in trace.explain(f'{PATH}[0,1,"katze"]').place
    assert '"·katze"' in trace.explain("encoder.blocks.0.attn.write[1,0]").place
    (picture,) = inspection.alignments(model, tokenizer, ENGLISH, source=GERMAN)
    assert list(picture.columns) == displayed
    grid = inspection.patch_grid(
        model,
        tokenizer,
        ENGLISH,
        ENGLISH,
        answer="cat",
        parts="resid",
        source=(GERMAN, OTHER.replace("ein ", "nie ")),
    )
    assert grid.clean[:2] == displayed[:2]


def test_texts_of_an_encoder_are_read_by_it(loaded):
    model, tokenizer, ids = loaded
    assert [row[0].tolist() for row in streams.windows(model, tokenizer, [GERMAN])] == [ids]
    ((target, source),) = streams.pairs(model, tokenizer, [(GERMAN, ENGLISH)])
    assert source[0].tolist() == ids and target[0, 1:].tolist() == tokenizer.encode(ENGLISH)
    word_in_contexts = inspection.word_in_contexts(model, tokenizer, "sitzt", GERMAN, OTHER)
    assert word_in_contexts.pieces == [["sitzt"], ["sitzt"]] and word_in_contexts.positions == [
        [2],
        [2],
    ]
    (neuron,) = inspection.top_activations(
        model, tokenizer, [GERMAN, OTHER], ["encoder.blocks.0.ffn.hidden[0]"]
    )
    assert {hit.piece.strip() for hit in neuron.hits} <= {*GERMAN.split(), *OTHER.split()}
    assert inspection.verify(model, tokenizer, new=2, compile=False) is not None


def test_the_command_line_the_page_and_saving(folder, loaded, tmp_path, terminal):
    model, tokenizer, ids = loaded
    output = terminal(f"why {folder} '{ENGLISH}' {PATH}[0,1,1] --source '{GERMAN}'")
    assert 'key 1 "·katze"' in output
    output = terminal(f"generate {folder} '{GERMAN}' --max-new 2 --json")
    assert '"prompt_pieces": ["eine", "katze", "sitzt", "da", "</s>"]' in output
    models = Models([str(folder)])
    runs, (name,) = TraceCache(models), models.entries
    answer = runs.make(RunFields(model=name, text=ENGLISH, source=GERMAN))
    assert [token["id"] for token in answer["source_tokens"]] == ids
    assert [token["end"] - token["start"] for token in answer["source_tokens"][:4]] == [4, 5, 5, 2]
    with torch.no_grad():
        store.save(model, tmp_path / "again", tokenizer)
    _, again = store.load(tmp_path / "again")
    assert again is not None and again.for_source.fingerprint == tokenizer.for_source.fingerprint
