"""A page over models at test size, asked in the same process; nothing of it listens on a port."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

from safetensors.numpy import load as read_tensors
from starlette.testclient import TestClient

import tiny
from glassformer import config as c
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train
from glassformer.formats import store
from glassformer.formats.chat_template import CHATML
from glassformer.serve.asgi.security import LOOPBACK
from glassformer.serve.page.events import Trainings
from glassformer.serve.page.models import Models
from glassformer.serve.page.routes import Page, application
from glassformer.tasks.objectives import Chat

TEXT = (
    "the cat sat on the mat and the dog sat on the log; a cat, a dog, a mat and a log. "
    "0123456789 🎵鸟 "
)


VOCAB = 300


@functools.cache
def tokenizer(kind="bpe"):
    """A tokenizer with so few entries that those of bytes hold most emoji in pieces."""
    return train(kind, [TEXT] * 4, VOCAB)


def worded(cfg):
    """The same shape with room for the tokenizer's entries."""
    fields = {"embed": replace(cfg.embed, vocab=VOCAB)}
    if getattr(cfg, "source_embed", None) is not None:
        fields["source_embed"] = replace(cfg.source_embed, vocab=VOCAB)
    return replace(cfg, **fields)


def saved(name, folder, seed=1):
    """A folder with the family ``name`` of tiny.ALL and a tokenizer."""
    cfg = worded(tiny.ALL[name])
    kind = "wordpiece" if isinstance(cfg, c.Encoder) else "bpe"
    store.save(build_model(cfg, seed=seed), folder, tokenizer(kind))
    return folder


def talker(folder):
    """A folder with a model that has a chat template, whose answers are random."""
    words = train("bpe", [TEXT] * 4, VOCAB, Chat.specials)
    words.chat_template = CHATML
    embed = replace(tiny.ALL["llama"].embed, vocab=words.size)
    cfg = replace(tiny.ALL["llama"], embed=embed, context=256)
    store.save(build_model(cfg, seed=2), folder, words)
    return folder


def page(*names, run=None):
    """A page over models by their names."""
    models = Models(list(names))
    return Page(models, Trainings(run, models))


class Browser(TestClient):
    """Asks the page as its own browser would."""

    def answer(self, path, **query):
        return self.get(path, params=query).json()

    def ask(self, path, **body):
        return self.post(path, json=body).json()


def client(page):
    app = application(page, frozenset(LOOPBACK))
    return Browser(app, "http://127.0.0.1:8642", raise_server_exceptions=False)


def tensors(data):
    """Tensors of a safetensors file."""
    return read_tensors(data)


def facts(data):
    """Metadata of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    output = json.loads(data[8 : 8 + size])["__metadata__"]
    return output
