"""A conversation on the page: the tokens of the terminal's chat, what ends an answer, and a base model
that says so."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")
pytest.importorskip("jinja2", reason="chat templates need jinja2")

import glassformer
import served
from folders import read_json
from glassformer.formats import store
from glassformer.formats.chat_template import CHATML, ChatTemplate
from glassformer.formats.checkpoint import Checkpoint
from glassformer.serve.page.models import InMemoryEntry, Models
from glassformer.serve.page.routes import Page

MESSAGES = [
    {"role": "system", "content": "a mat"},
    {"role": "user", "content": "the cat"},
    {"role": "assistant", "content": "sat"},
    {"role": "user", "content": "the dog"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return served.talker(tmp_path_factory.mktemp("chat") / "mine")


def events(client, **body):
    """What a stream holds: (event, data)."""
    answer = client.post("/api/generate", json={"model": "mine", **body})
    blocks = [block.split("\n") for block in answer.text.split("\n\n") if "data:" in block]
    fields = [dict(line.split(": ", 1) for line in block if ": " in line) for block in blocks]
    return [(field.get("event", "message"), json.loads(field["data"])) for field in fields]


def test_an_answer_is_that_of_the_terminal(folder, terminal, tmp_path):
    stream = events(served.client(served.page(folder)), messages=MESSAGES[:2], seed=3, max_new=12)
    _, tokenizer = glassformer.load(folder)
    ids = ChatTemplate(CHATML, tokenizer).tokens(MESSAGES[:2])
    assert stream[0][1]["ids"] == ids
    file = tmp_path / "chat.jsonl"
    lines = f"the cat\n/save {file}\n".encode()
    terminal(f"chat {folder} --system 'a mat' --seed 3 --max-tokens 12", stdin=lines)
    text = read_json(file)["messages"][-1]["content"]
    assert stream[-1][1]["text"] == text != ""
    assert "".join(data.get("text", "") for _, data in stream[1:-1]) == text


def test_settings_and_ends_are_the_folders(folder, tmp_path):
    """The folder says how to draw, and the token behind its template's answers ends one."""
    model, tokenizer = glassformer.load(folder)
    template = ChatTemplate(CHATML, tokenizer)
    (end,) = template.closing()
    store.save(model, tmp_path / "mine", tokenizer)
    (tmp_path / "mine" / "generation_config.json").write_text('{"do_sample": false}')
    client = served.client(served.page(tmp_path / "mine"))
    greedy = events(client, messages=MESSAGES, max_new=4)
    tokens = [data["id"] for _, data in greedy[1:-1]]
    expected = glassformer.generate(
        model, tokenizer, template.tokens(MESSAGES), temperature=0, max_new=4
    )
    assert tokens == expected.run().tokens[0]
    first, second = (
        [
            data["id"]
            for _, data in events(
                client, messages=MESSAGES, max_new=4, seed=seed, settings={"temperature": 5}
            )[1:-1]
        ]
        for seed in (1, 2)
    )
    assert first != second
    rows = model.head.proj.weight.data  # the token that ends an answer is now the likeliest
    rows[[end, tokens[0]]] = rows[[tokens[0], end]]
    entry = InMemoryEntry("mine", Checkpoint.open(tmp_path / "mine"), model, tokenizer)
    ended = events(served.client(Page(Models([entry]))), messages=MESSAGES, max_new=4)
    assert ended[-1][1]["finish"] == "eos" and len(ended) == 3


def test_a_base_model_says_that_it_is_one(folder, tmp_path):
    base = served.saved("gpt2", tmp_path / "base")
    client = served.client(served.page(folder, base))
    chats = {card["name"]: card["abilities"]["chat"] for card in client.answer("/api/models")}
    assert chats == {"mine": True, "base": False}
    answer = client.post("/api/generate", json={"model": "base", "messages": MESSAGES})
    assert answer.status_code == 400
    assert "is a base model: it has no chat template" in answer.json()["error"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages"),
        ([{"role": "king", "content": "a"}], "role"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": "a cat " * 500}], "the context is"),
    ],
)
def test_messages_that_cannot_be_are_refused_before_the_stream(messages, words, folder):
    client = served.client(served.page(folder))
    answer = client.post("/api/generate", json={"model": "mine", "messages": messages})
    assert answer.status_code in (400, 422) and words in answer.json()["error"], answer.text
