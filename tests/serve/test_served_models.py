"""What clients call a model, and which one answers."""

from __future__ import annotations

import shutil

import pytest
import torch

import glassformer
from changed import LORA
from folders import read_json, write_json
from glassformer.core.config import objective as objectives
from glassformer.core.errors import UserError
from glassformer.fast import prepacked
from glassformer.formats import store, tuning
from glassformer.serve.asgi.limits import LONGEST_NAME
from glassformer.serve.asgi.replies import HttpError
from glassformer.serve.engine import Engine, Request
from glassformer.serve.loading import model_id, open_models
from glassformer.serve.page.models import shipped
from glassformer.serve.served_models import EngineLimits, Registry
from seeding import generator_from

from .conftest import TEMPLATE, events, started

LIMITS = EngineLimits(64, 8, 64, 1 << 24)
WHOLE = objectives.LoRA(rank=2, target_modules=("*",))
PROMPTS = ("O Romeo", "To be", "The", "And so")


def test_a_model_is_called_after_its_folder_its_file_or_its_name(tmp_path):
    (tmp_path / "my model").mkdir()
    (tmp_path / "small.gguf").touch()
    assert model_id(str(tmp_path / "my model"), []) == "my-model"
    assert model_id(str(tmp_path / "small.gguf"), []) == "small"
    assert (
        model_id("gpt2", []) == "gpt2"
        and model_id("openai-community/gpt2", []) == "openai-community/gpt2"
    )
    assert model_id(str(tmp_path / "my model"), ["my-model", "my-model-2"]) == "my-model-3"
    (tmp_path / "…").mkdir()
    assert model_id(str(tmp_path / "…"), []) == "model"
    (tmp_path / ("a" * 255)).mkdir()
    assert len(model_id(str(tmp_path / ("a" * 255)), [])) <= LONGEST_NAME


def test_a_name_that_is_not_there_is_said_with_those_that_are():
    registry = Registry([])
    registry.entries.update(one=1, two=2)
    assert registry["two"] == 2 and registry[None] == 1
    with pytest.raises(HttpError) as result:
        registry["th\nree"]
    message = str(result.value)
    assert result.value.status == 404 and "one, two" in message and "\n" not in message


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A base, an adapter of two matrices of each block as we save it, and one of all as PEFT leaves it,
    which calls the base by a name that is not here."""
    home = tmp_path_factory.mktemp("adapted")
    shutil.copytree(shipped(), home / "base")
    (home / "base" / "chat_template.jinja").write_text(TEMPLATE)
    for seed, (name, method) in enumerate({"narrow": LORA, "wide": WHOLE}.items()):
        model, _ = glassformer.load(home / "base", dtype="float32")
        tuning.tune(model, method)
        draw = generator_from(seed)
        with torch.no_grad():
            for _, weight in tuning.trained(model):
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.1)
        store.save(model, home / name, base=str(home / "base"))
    shutil.copytree(home / "wide", home / "peft")
    (home / "peft" / "config.json").unlink()
    page = read_json(home / "peft" / "adapter_config.json")
    page["base_model_name_or_path"] = "somebody/base"
    write_json(home / "peft" / "adapter_config.json", page)
    return home


@pytest.mark.parametrize("bits", [None, 8])
def test_an_adapter_in_a_crowd_has_the_bits_of_its_model_alone(adapted, bits):
    """Reference: the folder of each adapter, loaded with its base by ``glassformer.load``."""
    names = [f"narrow={adapted / 'narrow'}", f"wide={adapted / 'peft'}"]
    registry = open_models(
        [str(adapted / "base")], LIMITS, dtype="float32", bits=bits, adapters=names
    )
    assert [*registry.entries] == ["base", "base:narrow", "base:wide"]
    folders = {"base": "base", "base:narrow": "narrow", "base:wide": "wide"}
    tokenizer = registry[None].tokenizer
    requests = [
        Request(tokenizer.encode(text), max_new=12, seed=seed, logprobs=2)
        for seed, text in enumerate(PROMPTS)
    ]
    handles = [
        (id, number, served.engine.submit(request))
        for number, request in enumerate(requests)
        for id, served in registry.entries.items()
    ]
    crowd = {(id, number): handle.result() for id, number, handle in handles}
    texts = {id: [crowd[id, number].text for number in range(len(requests))] for id in folders}
    assert len({*map(tuple, texts.values())}) == 3
    for id, folder in folders.items():
        model, _ = glassformer.load(adapted / folder, dtype="float32", bits=bits)
        for number, request in enumerate(requests):
            with Engine(model, tokenizer, max_context=64, memory=1 << 24) as engine:
                alone = engine.submit(request).result()
            assert crowd[id, number].completions == alone.completions
            if bits is None:  # quantized, both agree within rounding
                output = glassformer.generate(
                    model, tokenizer, PROMPTS[number], max_new=12, seed=number, temperature=1.0
                ).run()
                assert output.text == alone.text
    registry.close()


def test_an_adapter_keeps_only_the_matrices_that_it_changes(adapted, capsys):
    names = [f"narrow={adapted / 'narrow'}"]
    registry = open_models([str(adapted / "base")], LIMITS, dtype="float32", adapters=names)
    base, narrow = (dict(served.model.named_parameters()) for served in registry.entries.values())
    changed_names = {name for name in narrow if narrow[name] is not base[name]}
    assert changed_names == {
        name for name in base if name.endswith(("attn.q.weight", "attn.v.weight"))
    }
    count = sum(narrow[name].numel() for name in changed_names)
    assert f"base:narrow: {count:,} of its numbers are not its base's" in capsys.readouterr().err
    plain, changed = (prepacked._copies.get(s.model, {}) for s in registry.entries.values())
    for exact, copies in plain.items():
        for paths, packed in copies.items():
            is_shared = changed[exact][paths].matrix is packed.matrix
            assert is_shared == changed_names.isdisjoint(f"{path}.weight" for path in paths)
    registry.close()


def test_an_adapter_by_its_name_over_http(adapted, tmp_path):
    words = f"{adapted / 'base'} --dtype float32 --adapter poems={adapted / 'narrow'}"
    with started(tmp_path, words) as server:
        cards = server.get("/v1/models").json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [
            ("base", None),
            ("base:poems", "base"),
        ]
        assert server.get("/v1/models/base:poems").json() == cards[1]
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "seed": 1}
        answers = {
            name: server.json("/v1/chat/completions", body, model=name)
            for name in ("base", "base:poems", "poems")
        }
        texts = [answer["choices"][0]["message"]["content"] for answer in answers.values()]
        assert texts[0] != texts[1] == texts[2] and answers["poems"]["model"] == "base:poems"
        chunks = events(server.post("/v1/chat/completions", body, model="poems", stream=True))
        pieces = [c["choices"][0]["delta"].get("content", "") for c in chunks]
        assert "".join(pieces) == texts[1]
        missing = server.post("/v1/completions", prompt="O", model="base:prose")
        assert missing.status_code == 404 and "base, base:poems" in missing.text


@pytest.mark.parametrize(
    ("adapters", "sentence"),
    [
        (["poems"], "no NAME=FOLDER"),
        (["a b=x"], "no NAME=FOLDER"),
        (["poems=NARROW", "poems=NARROW"], "the name of another model"),
        (["base=NARROW"], "the name of another model"),
        (["poems=BASE"], "holds no adapter of"),
        (["poems=nowhere"], "nowhere"),
    ],
)
def test_what_is_no_adapter_is_refused(adapters, sentence, adapted):
    folders = {"NARROW": str(adapted / "narrow"), "BASE": str(adapted / "base")}
    for word, folder in folders.items():
        adapters = [text.replace(word, folder) for text in adapters]
    with pytest.raises(UserError) as result:
        open_models([str(adapted / "base")], LIMITS, adapters=adapters)
    assert sentence in str(result.value)


def test_an_adapter_of_another_base_is_refused(adapted, tmp_path):
    model, tokenizer = glassformer.load(adapted / "base", dtype="float32")
    with torch.no_grad():
        model.get_parameter("embed.token.weight").add_(1.0)
    store.save(model, tmp_path / "other", tokenizer)
    with pytest.raises(UserError, match="no longer those that it was made with"):
        open_models([str(tmp_path / "other")], LIMITS, adapters=[f"a={adapted / 'narrow'}"])
