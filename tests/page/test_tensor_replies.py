"""web/src/core/types.ts is what the server answers, path by path: no field more, no field less."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

from jsonschema import Draft202012Validator, validators

import served
import tiny
from folders import write_json, write_rows
from glassformer.core.nn import build_model
from glassformer.formats import store

TYPES = Path(__file__).parents[2] / "web/src/core/types.ts"
FAMILIES = ("gpt2", "gemma2", "mixtral", "bert", "t5")
SAVED = {"ModelCard.unsaved"}  # of a saved file alone, which no server sends (core/offline.ts)
UNREAL = ("NaN", "Infinity", "-Infinity")


class Reader:
    """The interfaces of a file of TypeScript as JSON Schemas, in the part of the language that
    types of JSON need. The title of a field is its path."""

    def __init__(self, text: str) -> None:
        plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        self.words = re.findall(r'"[^"]*"|\w+|[^\s\w]', plain)[::-1]
        self.schemas: dict[str, dict[str, Any]] = {}
        self.titles: set[str] = set()
        while self.words:
            self.take("export", "interface")
            name = self.words.pop()
            self.schemas[name] = self.object(name)

    def take(self, *expected: str) -> None:
        for word in expected:
            assert self.ahead(word), f"types.ts has {self.words[:-9:-1]}, not {word}"

    def ahead(self, word: str) -> bool:
        return bool(self.words) and self.words[-1] == word and bool(self.words.pop())

    def object(self, path: str) -> dict[str, Any]:
        self.take("{")
        properties, required = {}, []
        while not self.ahead("}"):
            name = self.words.pop().strip('"')
            if not self.ahead("?"):
                required.append(name)
            self.take(":")
            title = f"{path}.{name}"
            self.titles.add(title)
            properties[name] = {**self.type(title), "title": title}
            self.ahead(";")
        shape = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**shape, "required": required}

    def type(self, path: str) -> dict[str, Any]:
        group = [self.array(path)]
        while self.ahead("|"):
            group.append(self.array(path))
        return group[0] if len(group) == 1 else {"anyOf": group}

    def array(self, path: str) -> dict[str, Any]:
        result = self.single(path)
        while self.ahead("["):
            if not self.ahead("]"):  # Run["check"]
                result = {"$ref": f"{result['$ref']}/properties/{self.words.pop()[1:-1]}"}
                self.take("]")
            else:
                result = {"type": "array", "items": result}
        return result

    def single(self, path: str) -> dict[str, Any]:
        if self.words[-1] == "{":
            return self.object(path)
        if self.ahead("("):
            result = self.type(path)
            while self.ahead("&"):  # of an interface above and more fields
                base, more = self.schemas[result["$ref"].rpartition("/")[2]], self.object(path)
                fields = {**base["properties"], **more["properties"]}
                required = base["required"] + more["required"]
                result = {**base, "properties": fields, "required": required}
            self.take(")")
            return result
        if self.ahead("["):
            group = [self.type(path)]
            while self.ahead(","):
                group.append(self.type(path))
            self.take("]")
            return {"type": "array", "prefixItems": group, "items": False, "minItems": len(group)}
        word = self.words.pop()
        if word == "Record":
            self.take("<", "string", ",")
            result = {"type": "object", "additionalProperties": self.type(path)}
            self.take(">")
            return result
        if word[0] == '"':
            return {"const": word[1:-1]}
        return {"$ref": f"#/$defs/{word}"} if word[0].isupper() else {"type": word}


READ = Reader(TYPES.read_text(encoding="utf-8"))
ANSWERS = READ.schemas.pop("Answers")["properties"]
SEEN: set[str] = set()


def properties(validator: Any, fields: Any, value: Any, schema: Any) -> Iterator[Any]:
    SEEN.update(field["title"] for name, field in fields.items() if name in value)
    yield from Draft202012Validator.VALIDATORS["properties"](validator, fields, value, schema)


Checker = validators.extend(
    Draft202012Validator,
    {"properties": properties},
    # JSON has no other way to say infinity; core/run.ts makes numbers of these
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "number", lambda _, value: type(value) in (int, float) or value in UNREAL
    ),
)


def faults(answer: Any, path: str) -> list[str]:
    """Fields that differ from the type's."""
    schema = {**ANSWERS[path], "$defs": READ.schemas}
    return [
        f"{path} {error.json_path}: {error.message:.200}"
        for error in Checker(schema).iter_errors(answer)
    ]


def training(folder: Path) -> Path:
    """A run folder with all that a training writes for the page."""
    folder.mkdir()
    lines = [{"step": step, "loss": 4 / step, "valid_loss": 3.0} for step in range(1, 21)]
    write_rows(folder / "log.jsonl", lines)
    fields = {
        "train": {"steps": 40, "objective": {"type": "Causal"}},
        "model": {"embed": {"vocab": 300}},
    }
    write_json(folder / "run.json", fields)
    (folder / "samples.jsonl").write_text(json.dumps({"step": 20, "text": "the cat"}) + "\n")
    experts = [{"share": 0.5, "tokens": [["e", 3, 1.0]]}] * 2
    route = {"step": 20, "mixture": "decoder.blocks.0.ffn", "choices": 8, "experts": experts}
    (folder / "routing.jsonl").write_text(json.dumps(route) + "\n")
    served.saved("gpt2", folder / "step-000010")
    return folder


def events(text: str) -> Iterator[tuple[str, Any]]:
    for block in filter(None, text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        yield fields.get("event", "token"), json.loads(fields["data"])


def answers(folder: Path) -> Iterator[tuple[str, Any]]:
    """Every path of ``Answers`` and an answer of it; some more than once."""
    run = training(folder / "mine")
    store.save(
        build_model(served.worded(tiny.ALL["gpt2"])),
        folder / "unigram",
        served.tokenizer("unigram"),
    )
    folders = [folder / "unigram", *(served.saved(name, folder / name) for name in FAMILIES)]
    client = served.client(served.page(*folders, run=run))

    def get(path: str, name: str = "", **query: Any) -> tuple[str, Any]:
        return f"GET {name or path}", client.answer(f"/{path}", **query)

    def post(path: str, name: str = "", **body: Any) -> tuple[str, Any]:
        return f"POST {name or path}", client.ask(f"/{path}", **body)

    text = "the cat sat"
    yield get("api/models")
    runs = {}
    for name in FAMILIES:
        source = {"source": "a dog"} if name == "t5" else {}
        response = post("api/runs", model=name, text=text, **source)
        yield response
        runs[name] = f"api/runs/{response[1]['run']}"
        yield get(f"{runs[name]}/check", "api/runs/{run}/check")
        for op in response[1]["plan"][:: max(1, len(response[1]["plan"]) // 20)]:
            index = ",".join("0" for _ in op["shape"])
            yield get(f"{runs[name]}/cell", "api/runs/{run}/cell", address=f"{op['id']}[{index}]")
        if name != "bert":
            yield get(f"{runs[name]}/attribution", "api/runs/{run}/attribution", token=5)
    yield get(f"{runs['gpt2']}/attribution", "api/runs/{run}/attribution", token=5, against=6)
    yield get("api/models")  # now they are loaded
    yield post("api/runs", model="gpt2", text=text)  # found
    long = {"text": text * 100, "cut": True}
    yield post("api/runs", model="gpt2", edits=["head_off('decoder.blocks.0.attn', 0)"], **long)
    yield post("api/runs", model="t5", source=text * 100, **long)
    yield get(runs["gpt2"], "api/runs/{run}")
    yield post(f"{runs['gpt2']}/lens", "api/runs/{run}/lens", track=["the"], top=3)
    circuit = {"answer": "5", "draws": 1, "least": 0.2}
    yield post(f"{runs['gpt2']}/circuit", "api/runs/{run}/circuit", **circuit)
    yield get(f"{runs['mixtral']}/experts", "api/runs/{run}/experts")
    yield get("api/heads/gpt2", "api/heads/{model}")
    yield post("api/contexts", model="gpt2", word="cat", texts=["the cat sat", "a cat"])
    sent = client.post("/api/generate", json={"model": "gpt2", "text": text, "max_new": 3})
    for event, data in events(sent.text):
        yield f"POST api/generate {event}", data
    yield post("api/beam", model="gpt2", text=text, max_new=3)
    for name in ("gpt2", "bert", "unigram"):
        yield post("api/tokenize", text=text, tokenizers=[name])
        yield post("api/tokenize/steps", text=text, tokenizer=name, at=1)
    yield get("api/tokenizers")
    yield get("api/train")
    for kind in ("series", "samples", "routing", "probe"):
        yield get(f"api/train/mine/{kind}", f"api/train/{{name}}/{kind}")
    yield get("api/events", topics="train:mine", poll=1)
    yield post("api/train/mine/pause", "api/train/{name}/pause", paused=True)
    yield post("api/train/mine/stop", "api/train/{name}/stop")


def test_every_answer_is_as_its_type_says_and_every_field_of_a_type_is_sent(tmp_path, monkeypatch):
    monkeypatch.delenv(
        "GLASSFORMER_DATA", raising=False
    )  # a tokenizer that is there has no command
    output, paths = list[str](), set[str]()
    for path, answer in answers(tmp_path):
        paths.add(path)
        output += faults(answer, path)
    assert not output, "\n".join(sorted({re.sub(r"\[\d+\]", "[]", item) for item in output}))
    assert paths == ANSWERS.keys()
    named = {title for title in READ.titles if not title.startswith(("Settings.", "Answers."))}
    assert named - SEEN == SAVED, sorted(named - SEEN)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"step": 1, "text": "a", "more": 0}, "'more' was unexpected"),
        ({"step": 1}, "'text' is a required property"),
        ({"step": "1", "text": "a"}, "$[0].step: '1' is not of type 'number'"),
        ({"step": True, "text": "a"}, "$[0].step: True is not of type 'number'"),
    ],
)
def test_a_fault_is_found(sample, message):
    """A field too many, one too few, one of another type: as the page would meet it."""
    path = "GET api/train/{name}/samples"
    assert not faults([{"step": 1, "text": "a"}], path)
    (fault,) = faults([sample], path)
    assert message in fault
