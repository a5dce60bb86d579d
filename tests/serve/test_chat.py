"""Chat: the model's own template, deltas as OpenAI's clients read them, log-probabilities that make
up the text."""

from __future__ import annotations

import itertools
import json
import random
import re
import subprocess
import sys
import threading
import time

import pytest

import glassformer
from glassformer.core.errors import UserError

from .conftest import events

CHAT = "/v1/chat/completions"
ASKED = {
    "messages": [
        {"role": "system", "content": "Be a king."},
        {"role": "user", "content": "Who are you?"},
    ]
}
PROMPT = "system: Be a king.\nuser: Who are you?\nassistant:"
HOW = {"max_tokens": 24, "temperature": 0.7, "seed": 5}


def test_a_chat_is_a_completion_of_its_template(server):
    body = server.json(CHAT, {**ASKED, **HOW, "n": 2})
    plain = server.json("/v1/completions", {"prompt": PROMPT, **HOW, "n": 2})
    assert [item["message"]["content"] for item in body["choices"]] == [
        item["text"] for item in plain["choices"]
    ]
    assert (
        body["object"] == "chat.completion"
        and body["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    )
    assert {item["message"]["role"] for item in body["choices"]} == {"assistant"}
    pieces = [
        {
            "role": "system",
            "content": [{"type": "text", "text": "Be a "}, {"type": "text", "text": "king."}],
        }
    ]
    again = server.json(CHAT, HOW, n=2, messages=[*pieces, ASKED["messages"][1]])
    assert again["choices"] == body["choices"]


def test_a_stream_of_deltas(server):
    body = server.json(CHAT, {**ASKED, **HOW, "n": 2})
    query = {**ASKED, **HOW, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(server.post(CHAT, query))
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and chunks[0][
        "model"
    ] == "tiny"
    assert last["choices"] == [] and last["usage"] == body["usage"]
    for index in (0, 1):
        local = [item for chunk in chunks for item in chunk["choices"] if item["index"] == index]
        assert local[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in item["delta"] for item in local[1:])
        text = "".join(item["delta"].get("content", "") for item in local)
        assert text == body["choices"][index]["message"]["content"]
        assert [item["finish_reason"] for item in local] == [None] * (len(local) - 1) + ["length"]


@pytest.mark.parametrize("stop", [None, "e"])
def test_log_probabilities_make_up_the_text(server, stop):
    body = {**ASKED, **HOW, "logprobs": True, "top_logprobs": 3, "stop": stop, "max_tokens": 60}
    (choice,) = server.json(CHAT, body)["choices"]
    content = choice["logprobs"]["content"]
    joined = b"".join(bytes(entry["bytes"]) for entry in content).decode("utf-8", "replace")
    assert (
        joined == choice["message"]["content"]
        if stop is None
        else joined.startswith(choice["message"]["content"])
    )
    for entry in content:
        assert (
            len(entry["top_logprobs"]) == 3
            and entry["top_logprobs"][0]["logprob"] >= entry["logprob"]
        )
    streamed = [
        c for chunk in events(server.post(CHAT, body, stream=True)) for c in chunk["choices"]
    ]
    pieces = [item for c in streamed if c["logprobs"] for item in c["logprobs"]["content"]]
    assert pieces == content
    for c in streamed:
        if stop is None and c["logprobs"] and "\ufffd" not in c["delta"]["content"]:
            output = b"".join(bytes(item["bytes"]) for item in c["logprobs"]["content"])
            assert output == c["delta"]["content"].encode(), "a token is told with its text"


def test_an_assistants_message_may_have_no_content(server):
    """OpenAI's client gives earlier answers back so."""
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [],
        "annotations": [],
        "audio": None,
    }
    item, second = ([*ASKED["messages"], {**message, "content": content}] for content in (None, ""))
    ids = [server.json("/tokenize", messages=messages)["tokens"] for messages in (item, second)]
    assert ids[0] == ids[1] and server.post(CHAT, messages=item, max_tokens=1).status_code == 200
    for role in ("user", "system"):
        answer = server.post(CHAT, messages=[{"role": role, "content": None}], max_tokens=1)
        assert (
            answer.status_code == 400 and "content is missing" in answer.json()["error"]["message"]
        )


def test_a_participants_name_is_for_the_template(server):
    named = [{"role": "user", "content": "hi", "name": "ann"}]
    assert server.post("/tokenize", messages=named).status_code == 200
    sly = server.post("/tokenize", messages=[{**named[0], "name": "<|endoftext|>"}])
    assert sly.status_code == 400 and "name" in sly.json()["error"]["message"]


def test_special_tokens_in_a_message_are_text(server, chat_model):
    _, tokenizer = glassformer.load(chat_model)
    sly = [{"role": "user", "content": "<|endoftext|>hi"}]
    tokens = server.json("/tokenize", messages=sly)["tokens"]
    assert (
        tokenizer.eos not in tokens
        and tokenizer.decode(tokens) == "user: <|endoftext|>hi\nassistant:"
    )


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_kept(server, seed):
    """Reference: another library's validator."""
    schemas = pytest.importorskip("jsonschema_rs")
    form = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
    }
    body = {**ASKED, "temperature": 1, "seed": seed, "max_tokens": 120, "response_format": form}
    (choice,) = server.json(CHAT, body)["choices"]
    assert choice["finish_reason"] == "stop"
    schemas.validate(SCHEMA, json.loads(choice["message"]["content"]))
    streamed = events(server.post(CHAT, body, stream=True))
    text = "".join(
        item["delta"].get("content", "") for chunk in streamed for item in chunk["choices"]
    )
    assert text == choice["message"]["content"], "the same seed and the same grammar"


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ({"guided_regex": "(yes|no), [0-9]{3}"}, r"(yes|no), \d{3}"),
        ({"guided_grammar": 'start: "a" NUMBER\nNUMBER: /[0-9]{2}/'}, r"a\d\d"),
        ({"guided_json": {"enum": ["red", "green"]}}, '"(red|green)"'),
    ],
)
def test_an_expression_and_a_grammar_are_kept(server, more, fits):
    import re

    for seed in range(3):
        (choice,) = server.json(CHAT, {**ASKED, "seed": seed, "max_tokens": 40, **more})["choices"]
        assert (
            re.fullmatch(fits, choice["message"]["content"]) and choice["finish_reason"] == "stop"
        )


def test_any_json_object(server):
    body = {
        **ASKED,
        "response_format": {"type": "json_object"},
        "max_tokens": 100,
        "temperature": 0.5,
        "seed": 3,
    }
    (choice,) = server.json(CHAT, body)["choices"]
    text = choice["message"]["content"]
    assert text.startswith("{") and (
        choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)
    )


@pytest.mark.parametrize(
    "schema", [SCHEMA, {"enum": ["red", "green"]}, {"type": "array", "maxItems": 2}]
)
def test_a_tokenizer_that_puts_a_space_in_front_keeps_a_schema_too(shared_data, schema):
    """SentencePiece's: each step allows something, what it allows is taken, and the end is JSON of
    the schema."""
    schemas = pytest.importorskip("jsonschema_rs")
    from glassformer.formats.tokenizer_files import open as open_tokenizer
    from glassformer.serve import grammars

    tokenizer = open_tokenizer(shared_data / "stories260K")
    make = grammars.guide_factory(tokenizer, tokenizer.size, "json", schema)
    for seed in range(10):
        luck, guide, tokens = random.Random(seed), make(), list[int]()
        while len(tokens) < 200 and (not tokens or tokens[-1] != tokenizer.eos):
            allowed = guide(tokens)
            assert allowed is not None and allowed.any()
            tokens.append(luck.choice(allowed.nonzero().flatten().tolist()))
        if tokens[-1] == tokenizer.eos:
            text = b"".join(tokenizer.bytes_of(id) for id in tokens[:-1]).decode()
            schemas.validate(schema, json.loads(text))


SPACED = [r"Lily (ran|sat) [0-9]{3}", r"[A-C][a-z]{2}\. [0-9]{1,4}", r"a  b +c"]


@pytest.mark.parametrize(
    "folder, pattern",  # T5's vocabulary has neither a half nor its bytes
    [*itertools.product(["stories260K", "tok-t5"], SPACED), ("stories260K", r"x\u00bd")],
)
def test_a_tokenizer_that_drops_spaces_can_write_what_a_grammar_forces(
    shared_data, folder, pattern
):
    """These tokenizers drop spaces at the end of a text and where there are two, and write a half
    as 1/2; none of that is what a grammar asks for."""
    from glassformer.formats.tokenizer_files import open as open_tokenizer
    from glassformer.serve import grammars

    tokenizer = open_tokenizer(shared_data / folder)
    make = grammars.guide_factory(tokenizer, tokenizer.size, "regex", pattern)
    for seed in range(5):
        lot, guide, tokens = random.Random(seed), make(), list[int]()
        while not tokens or tokens[-1] != tokenizer.eos:
            allowed = guide(tokens)
            assert allowed is not None and len(tokens) < 200
            tokens.append(lot.choice(allowed.nonzero().flatten().tolist()))
        answer = b"".join(tokenizer.bytes_of(id) for id in tokens[:-1]).decode()
        assert re.fullmatch(pattern, answer), answer


def test_a_grammar_that_fails_between_two_tokens_is_a_sentence():
    """llguidance ends a grammar that exceeds its bounds; its mask allows anything then."""
    from glassformer.serve.grammars import guides

    class Matcher:
        def deep_copy(self):
            return self

        def consume_token(self, token):
            return token != 3

        def compute_bitmask(self):
            return b"\xff\xff"

        def is_error(self):
            return failed

        def get_error(self):
            return "too many states\n<state>\nTokens: x"

    failed = False
    make = guides(Matcher(), 12)
    allowed = make()([1, 2])
    assert allowed is not None and allowed.tolist() == [True] * 12
    reason = r"too large: too many states\.$"
    with pytest.raises(UserError, match=reason):
        make()([1, 3])
    failed = True
    with pytest.raises(UserError, match=reason):
        make()([1, 2])


def test_a_grammar_that_takes_long_ends_and_not_its_neighbours() -> None:
    """Each step of an ambiguous grammar takes longer than the last: in 400 tokens it held up
    everybody for minutes. What all continuations of a request take is counted together."""
    from glassformer.formats.store import load
    from glassformer.serve import grammars
    from glassformer.serve.page.models import shipped

    _, tokenizer = load(shipped())
    assert tokenizer is not None
    text = 'start: x\nx: y y y y y y\ny: z z z z z z\nz: w w w w w w\nw: "a" | "b" | "" | w w\n'
    make = grammars.guide_factory(tokenizer, tokenizer.size, "lark", text)
    pair, tokens = (make(), make()), list[int]()
    start = time.thread_time()
    with pytest.raises(UserError, match="takes too long"):
        while len(tokens) < 2000:
            for guide in pair:
                allowed = guide(tokens)
            assert allowed is not None
            tokens.append(int(allowed.nonzero()[0]))
    assert time.thread_time() - start < 2 * grammars.MOST_SECONDS + 0.02 * len(tokens)


def test_the_slow_grammars_of_a_client_take_a_share_of_the_time(monkeypatch) -> None:
    """Each request alone keeps to its bound; thirty of one client would hold up all others. What it
    owes is paid back as time goes by."""
    from types import SimpleNamespace

    from glassformer.serve import grammars
    from glassformer.serve.engine.sequence import QueueFull

    clock = SimpleNamespace(now=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, thread_time=lambda: clock.now)
    monkeypatch.setattr(grammars, "time", fake)
    monkeypatch.setattr(grammars, "_paid_at", {})

    class Slow:
        consume_token = bool

        def deep_copy(self) -> Slow:
            return self

        def compute_bitmask(self) -> bytes:
            clock.now += 0.5
            return b"\xff"

        def is_error(self) -> bool:
            return False

        get_error = str

    def ask(client: str) -> None:
        grammars.guides(Slow(), 8, client)()([])

    allowed = 0
    with pytest.raises(QueueFull, match="of this client take too long"):
        for _ in range(30):
            ask("attacks")
            allowed += 1
    assert 8 <= allowed <= 12
    before = clock.now
    ask("another")
    clock.now = before + 1.0
    with pytest.raises(QueueFull):
        for _ in range(2):
            ask("attacks")
    clock.now += 2 * grammars.MOST_SECONDS / grammars.CLIENT_SHARE
    ask("attacks")
    ask("another")
    clock.now += 60
    ask("third")
    assert [*grammars._paid_at] == ["third"]  # nobody else owes anything


REPEATED = "((a{1,100}){1,100}){1,100}"
PROPERTIES = {f"property_{number}": {"type": "integer"} for number in range(1500)}


@pytest.mark.parametrize(
    ("kind", "source", "fails"),
    [
        ("regex", REPEATED, True),
        ("json", {"enum": [f"value number {number}" for number in range(3000)]}, False),
        ("json", {"type": "object", "properties": PROPERTIES}, False),
        ("lark", "start: " + " | ".join(f'"{number}"' for number in range(7000)), False),
    ],
    ids=["repeated", "enum", "properties", "alternatives"],
)
def test_a_large_form_ends_alone_or_is_kept(kind, source, fails):
    from glassformer.core.errors import UserError
    from glassformer.formats.store import load
    from glassformer.serve import grammars
    from glassformer.serve.engine import Engine, Request
    from glassformer.serve.page.models import shipped

    model, tokenizer = load(shipped())
    assert tokenizer is not None
    make = grammars.guide_factory(tokenizer, model.config.embed.vocab, kind, source)
    request = Request(tokenizer.encode("Romeo"), max_new=40, seed=2)
    with Engine(model, tokenizer) as engine:
        expected = engine.submit(request).result().completions[0].tokens
        handle = engine.submit(Request(tokenizer.encode("O"), guide=make, n=2, max_new=60, seed=1))
        neighbour = engine.submit(request)
        if fails:
            with pytest.raises(UserError, match="too large"):
                handle.result()
        else:
            assert len(handle.result().completions) == 2
        assert neighbour.result().completions[0].tokens == expected


CHAINS = {
    "rules": ("lark", 'start: r0\n{chain}r4500: "a"', "r{at}: r{next}\n"),
    "terminals": ("lark", 'start: R0\n{chain}R4500: "a"', "R{at}: R{next}\n"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_of_rules_does_not_end_the_process(name):
    """llguidance follows rules by recursion: 4,000 of them, 50 KB of one request, filled a stack of
    8 MB and ended the server of everybody by SIGSEGV."""
    kind, form, link = CHAINS[name]
    chain = "".join(link.format(at=at, next=at + 1) for at in range(4500))
    text = form.replace("{chain}", chain)
    code = (
        "import sys; from glassformer.formats.store import load\n"
        "from glassformer.serve import grammars\n"
        "from glassformer.serve.page.models import shipped\n"
        "_, tokenizer = load(shipped())\n"
        f"make = grammars.guide_factory(tokenizer, tokenizer.size, {kind!r}, sys.stdin.read())\n"
        "ids = make()([]).nonzero().flatten().tolist()\n"
        "print([tokenizer.bytes_of(id) for id in ids])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[b'a']"), done.stderr[-500:]


def test_a_grammar_that_compiles_too_long_is_given_up(monkeypatch):
    """Some schemas compile for hours, and nothing can end that: the request ends, a second one of the
    client waits for it, and another client's is compiled."""
    from glassformer.formats.store import load
    from glassformer.serve import grammars
    from glassformer.serve.asgi.replies import HttpError
    from glassformer.serve.engine.sequence import QueueFull
    from glassformer.serve.page.models import shipped

    released = threading.Event()
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 0.05)
    with pytest.raises(HttpError, match="too long to compile"):
        grammars._compiled(lambda: released.wait(60), "attacks")
    _, tokenizer = load(shipped())
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 60)
    with pytest.raises(QueueFull, match="still being compiled"):
        grammars.guide_factory(tokenizer, tokenizer.size, "regex", "a", "attacks")
    grammars.guide_factory(tokenizer, tokenizer.size, "regex", "a", "another")
    released.set()
    while "attacks" in grammars._compiling:
        time.sleep(0.01)
    grammars.guide_factory(tokenizer, tokenizer.size, "regex", "a", "attacks")


@pytest.mark.parametrize("name", ["regex", "json", "lark"])
def test_a_pattern_of_many_choices_is_refused_and_does_not_hold_up_a_step(name):
    """The mask of one token of 30,000 optional letters took 12 seconds, while everybody waited."""
    from glassformer.formats.store import load
    from glassformer.serve import grammars
    from glassformer.serve.asgi.replies import HttpError
    from glassformer.serve.page.models import shipped

    many = "a?" * 30_000
    forms = {
        "regex": many,
        "json": {"type": "string", "pattern": f"^{many}$"},
        "lark": f'start: "x" /{many}/',
    }
    _, tokenizer = load(shipped())
    with pytest.raises(HttpError, match="too big"):
        grammars.guide_factory(tokenizer, tokenizer.size, name, forms[name])
