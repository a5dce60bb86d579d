"""web/src/core/types.ts is what the server answers, path by path: no field more, no field less."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

pytest.importorskip("starlette", reason="the page needs its extra: pip install -e '.[page]'")
pytest.importorskip("httpx", reason="tests of the page need httpx")

import served
import tiny
from glassformer.core.nn import build_model
from glassformer.formats import store

TYPES = Path(__file__).parents[2] / "web/src/core/types.ts"
FAMILIES = ("gpt2", "gemma2", "mixtral", "bert", "t5")
SAVED = {"ModelCard.unsaved"}  # of a saved file alone, which no server sends (core/offline.ts)
UNREAL = ("NaN", "Infinity", "-Infinity")
Type: TypeAlias = tuple[Any, ...]
"""("name", it), ("literal", it), ("list", of), ("tuple", ofs), ("record", of), ("one of", ofs),
("all of", ofs) or ("object", {field: (type, whether it may be left out)}, its path)."""


class Reader:
    """The interfaces of a file of TypeScript, in the part of the language that types of JSON
    need."""

    def __init__(self, text: str) -> None:
        plain = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        self.words = re.findall(r'"[^"]*"|\w+|[^\s\w]', plain)
        self.at = 0
        self.interfaces: dict[str, Type] = {}
        while self.at < len(self.words):
            self.take("export"), self.take("interface")
            name = self.take()
            self.interfaces[name] = self.fields(name)

    def take(self, expected: str | None = None) -> str:
        word = self.words[self.at]
        assert expected is None or word == expected, (
            f"types.ts has {' '.join(self.words[self.at - 5 : self.at + 5])}"
        )
        self.at += 1
        return word

    def ahead(self, word: str) -> bool:
        result = self.at < len(self.words) and self.words[self.at] == word
        self.at += result
        return result

    def fields(self, path: str) -> Type:
        self.take("{")
        result = {}
        while not self.ahead("}"):
            name = self.take().strip('"')
            optional = self.ahead("?")
            self.take(":")
            result[name] = (self.type(f"{path}.{name}"), optional)
            self.ahead(";")
        return "object", result, path

    def type(self, path: str) -> Type:
        group = [self.intersection(path)]
        while self.ahead("|"):
            group.append(self.intersection(path))
        return group[0] if len(group) == 1 else ("one of", group)

    def intersection(self, path: str) -> Type:
        group = [self.lists(path)]
        while self.ahead("&"):
            group.append(self.lists(path))
        return group[0] if len(group) == 1 else ("all of", group)

    def lists(self, path: str) -> Type:
        result = self.single(path)
        while self.ahead("["):
            if self.ahead("]"):
                result = "list", result
            else:  # Run["check"]
                result = "field", result, self.take().strip('"')
                self.take("]")
        return result

    def single(self, path: str) -> Type:
        if self.words[self.at] == "{":
            return self.fields(path)
        if self.ahead("("):
            result = self.type(path)
            self.take(")")
            return result
        if self.ahead("["):
            group = [self.type(path)]
            while self.ahead(","):
                group.append(self.type(path))
            self.take("]")
            return "tuple", group
        word = self.take()
        if word == "Record":
            for sign in ("<", "string", ","):
                self.take(sign)
            result = "record", self.type(path)
            self.take(">")
            return result
        return ("literal", word[1:-1]) if word[0] == '"' else ("name", word)


READ = Reader(TYPES.read_text(encoding="utf-8"))
ANSWERS: dict[str, Any] = {
    path: type for path, (type, _) in READ.interfaces.pop("Answers")[1].items()
}
SEEN: set[str] = set()


def expanded(type: Type) -> Type:
    """Names of interfaces as what they stand for, and several objects as one."""
    if type[0] == "name" and type[1] in READ.interfaces:
        return READ.interfaces[type[1]]
    if type[0] == "field":
        return expanded(expanded(type[1])[1][type[2]][0])
    if type[0] == "all of":
        pieces = [expanded(item) for item in type[1]]
        merged = {
            name: (field, optional, piece[2])
            for piece in pieces
            for name, (field, optional) in piece[1].items()
        }
        return "object", merged, None
    return type


def faults(value: Any, type: Type, places: str) -> Iterator[str]:
    """Fields that differ from the type's."""
    type = expanded(type)
    kind, of = type[0], type[1]
    if kind == "object":
        if not isinstance(value, dict):
            yield f"{places} is no object"
            return
        for name in value.keys() - of.keys():
            yield f"{places} has {name}, which types.ts does not"
        for name, (field, optional, *owner) in of.items():
            if name in value:
                SEEN.add(f"{owner[0] if owner else type[2]}.{name}")
                yield from faults(value[name], field, f"{places}.{name}")
            elif not optional:
                yield f"{places} has no {name}"
    elif kind in ("list", "record"):
        if not isinstance(value, list if kind == "list" else dict):
            yield f"{places} is no {kind}"
        else:
            for at, item in enumerate(value) if kind == "list" else value.items():
                yield from faults(item, of, f"{places}[{at}]")
    elif kind == "tuple":
        if not isinstance(value, list) or len(value) != len(of):
            yield f"{places} is not {len(of)} values"
        else:
            for at, (item, second_item) in enumerate(zip(value, of, strict=True)):
                yield from faults(item, second_item, f"{places}[{at}]")
    elif kind == "one of":
        tried = [list(faults(value, item, places)) for item in of]
        if all(tried):
            yield f"{places} is {value!r:.60}: {'; '.join(item[0] for item in tried)}"
    elif kind == "literal":
        if value != of:
            yield f"{places} is not {of}"
    else:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # JSON has no other way; core/run.ts makes numbers of them
        number |= "/cell" in places and value in UNREAL
        fields = {
            "number": number,
            "string": isinstance(value, str),
            "boolean": isinstance(value, bool),
        }
        if not {**fields, "null": value is None}[of]:
            yield f"{places} is {value!r:.60}, no {of}"


def training(folder: Path) -> Path:
    """A run folder with all that a training writes for the page."""
    folder.mkdir()
    lines = [{"step": step, "loss": 4 / step, "valid_loss": 3.0} for step in range(1, 21)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = {
        "train": {"steps": 40, "objective": {"type": "Causal"}},
        "model": {"embed": {"vocab": 300}},
    }
    (folder / "run.json").write_text(json.dumps(fields))
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
        return f"GET {name or path}", client.get(f"/{path}", params=query).json()

    def post(path: str, name: str = "", **body: Any) -> tuple[str, Any]:
        return f"POST {name or path}", client.post(f"/{path}", json=body).json()

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


def fields_of(type: Type, path: str) -> Iterator[str]:
    """Every field of an interface and of the objects in it, by their paths."""
    if type[0] == "object":
        for name, (field, _) in type[1].items():
            yield f"{type[2]}.{name}"
            yield from fields_of(field, path)
    elif type[0] in ("list", "record"):
        yield from fields_of(type[1], path)
    elif type[0] in ("one of", "all of", "tuple"):
        for item in type[1]:
            yield from fields_of(item, path)


def test_every_answer_is_as_its_type_says_and_every_field_of_a_type_is_sent(tmp_path):
    output, paths = list[str](), set[str]()
    for path, answer in answers(tmp_path):
        paths.add(path)
        assert path in ANSWERS, f"{path} is not in types.ts"
        output += faults(answer, ANSWERS[path], path)
    assert not output, "\n".join(sorted({re.sub(r"\[\d+\]", "[]", item) for item in output}))
    assert paths == ANSWERS.keys()
    named = {
        field
        for name, type in READ.interfaces.items()
        if name != "Settings"
        for field in fields_of(type, name)
    }
    assert named - SEEN == SAVED, sorted(named - SEEN)


def test_a_fault_is_found():
    """A field too many, one too few, one of another type: as the page would meet it."""
    sample = ANSWERS["GET api/train/{name}/samples"]
    assert not list(faults([{"step": 1, "text": "a"}], sample, "it"))
    assert list(faults([{"step": 1, "text": "a", "more": 0}], sample, "it")) == [
        "it[0] has more, which types.ts does not"
    ]
    assert list(faults([{"step": 1}], sample, "it")) == ["it[0] has no text"]
    assert list(faults([{"step": "1", "text": "a"}], sample, "it")) == [
        "it[0].step is '1', no number"
    ]
    probed = ANSWERS["GET api/train/{name}/routing"]
    (wrong,) = faults(
        [{"address": "a", "steps": [], "share": [[True]], "tokens": [[["a", 1, 1]]]}], probed, "it"
    )
    assert wrong == "it[0].share[0][0] is True, no number"
