"""The recipe book: sizes as published, config.json in and out, and what no module here does refused
by name."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from folders import read_json
from glassformer import config
from glassformer import families as recipes
from glassformer.core.config import serial
from glassformer.core.errors import UserError
from mistakes import mistake

DECODERS = [  # all but glass
    recipe
    for recipe in recipes.all()
    if recipe.name != "glass" and isinstance(next(iter(recipe.sizes.values())), config.Decoder)
]
STORIES = recipes.find("llama/stories260k")
LLAMA = recipes.write_config(STORIES)[1]


@pytest.mark.parametrize("name", recipes.names())
def test_every_size_survives_json_and_its_own_layout(name):
    model = recipes.find(name)
    assert serial.loads(config.Model, serial.dumps(model)) == model
    if recipes.RECIPES[name.partition("/")[0]].read_config is None:
        return
    if name.startswith("vaswani/"):  # the paper's sines and cosines take turns, the layout's do not
        model = serial.change(
            model, {f"{side}.position.halves": True for side in ("encoder", "decoder")}
        )
    recipe, raw = recipes.write_config(model, name.partition("/")[0])
    assert recipe.name == name.partition("/")[0]
    again, back = recipes.read_config(json.loads(json.dumps(raw)))
    assert again is recipe
    assert recipes.plain(back) == recipes.plain(model)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2/124m",
        "llama/3.1-8b",
        "llama/2-70b",
        "llama/3.2-1b",
        "bert/base",
        "bert/minilm-l6",
        "electra/small",
        "distilbert/base",
        "eurobert/210m",
        "nomic-bert/base",
        "nomic-bert/embed-v1.5",
        "roberta/base",
        "camembert/base",
        "xlm-roberta/base",
        "electra/small-generator",
        "modernbert/base",
        "mpnet/base",
        "longformer/base-4096",
        "albert/base",
        "esm/2-8m",
        "deberta/base",
        "deberta-v2/v3-base",
        *(
            f"{name}/{size}"
            for name in ("bart", "mbart", "m2m-100", "pegasus", "led")
            for size in recipes.RECIPES[name].sizes
        ),
        "t5/small",  # not 1.1: transformers 5 calls every T5's head tied, and files say otherwise
        *(
            f"{recipe.name}/{size}"
            for recipe in DECODERS[2:]
            for size in (recipe.sizes if recipe.read_config else ())
        ),
    ],
)
def test_transformers_reads_our_config_as_we_meant_it(name):
    transformers = pytest.importorskip("transformers")
    raw = recipes.write_config(recipes.find(name), name.partition("/")[0])[1]
    reference = transformers.AutoConfig.for_model(
        raw["model_type"], **{k: v for k, v in raw.items() if k != "model_type"}
    )
    again = recipes.read_config(json.loads(json.dumps(reference.to_dict())))[1]
    assert recipes.plain(again) == recipes.plain(recipes.find(name))


def test_find_ignores_case_and_suggests():
    assert recipes.find("Llama/3-8B") == recipes.find("llama/3-8b")
    for wrong, value in {
        "llama/9b": "llama/3.2-1b",
        "lama/3-8b": 'mean "llama/3-8b"',
        "foo": "`glassformer recipes` lists them",
        "gpt2": "gpt2/124m",
    }.items():
        with mistake(value):
            recipes.find(wrong)


# ------------------------------------------------------------------------------ config.json, theirs


TABLES = read_json(Path(__file__).with_name("recipes.json"))

FAR = (10**400, -(10**400))  # past every float
LAYERS = {
    "chunked_attention": '"layer_types" is',
    "sliding_attention": '"full_attention" everywhere without a window',
}


@pytest.mark.parametrize(
    "name, changes, text",
    [
        *(
            (name, {key: value}, text)
            for name, rows in TABLES["refused"].items()
            for key, value, text in rows
        ),
        *(("llama/stories260k", {"rms_norm_eps": far}, "rms_norm_eps") for far in FAR),
        *(("qwen2/7b", {"layer_types": [kind] * 28}, text) for kind, text in LAYERS.items()),
        ("qwen3moe/30b-a3b", {"layer_types": ["full_attention"] * 48}, '"layer_types" is'),
        ("llama/stories260k", {"architectures": None, "model_type": None}, "names no model"),
        (
            "llama/stories260k",
            {"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None},
            "7 heads do not divide dim 64|heads 7",
        ),
        (
            "llama/stories260k",
            {"architectures": None, "model_type": ["llama"]},
            '"model_type"|architecture ',
        ),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name, changes, text):
    raw = recipes.write_config(recipes.find(name), name.partition("/")[0])[1]
    with mistake(text) as caught:
        recipes.read_config({**raw, **changes}, "folder/config.json")
    assert str(caught.value).startswith("folder/config.json")


def test_model_type_is_enough():
    assert recipes.read_config({**LLAMA, "architectures": None})[0].name == "llama"


# -------------------------------------------------------------------------------- config.json, ours


@pytest.mark.parametrize(
    "name, change, value, text",
    [(name, *row) for name, rows in TABLES["unsaid"].items() for row in rows],
)
def test_what_no_layout_can_say_is_named(name, change, value, text):
    with mistake(None, text, 'layout "glassformer"'):
        recipes.write_config(
            serial.change(recipes.find(name), {change: value}), name.partition("/")[0]
        )


def test_glass_has_no_published_layout():
    with mistake("No published layout holds this model"):
        recipes.write_config(recipes.find("glass/1m"))


def test_a_pattern_of_equal_blocks_is_one_block():
    block = STORIES.decoder.pattern[0]
    doubled = serial.change(STORIES, {"decoder.depth": 4})
    doubled = serial.change(doubled, {"decoder.pattern": [serial.to_dict(block)] * 2})
    assert recipes.write_config(doubled)[0].name == "llama"


def test_small_glass_is_small_enough():
    """The recipe's name promises at most 0.85 million parameters beside the vocabulary."""
    from glassformer.scale.cost import cost

    spent = cost(recipes.find("glass/1m"))
    assert spent.total - spent.parameters["embedding"] <= 850_000


def coverage():
    """The module benchmarks/coverage.py."""
    path = Path(__file__).parents[2] / "benchmarks" / "coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_of_types", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_as_many_of_the_usual_model_types_open_as_the_pages_say():
    """Each is in the book with a layout; benchmarks/coverage.py loads and compares them."""
    module = coverage()
    kinds = [kind for kinds in module.TYPES.values() for kind in kinds.split()]
    assert len(kinds) == len(set(kinds)) == 75
    book = {recipe.model_type for recipe in recipes.all() if recipe.read_config is not None}
    assert len(book.intersection(kinds)) >= module.LEAST
    root = Path(__file__).parents[2]
    claim = re.compile(r"(\d+) of (?:the )?75\b")
    assert claim.search((root / "README.md").read_text(encoding="utf-8"))
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for number in claim.findall(page.read_text(encoding="utf-8")):
            assert int(number) == module.LEAST, page.name


def test_the_types_that_open_compute_as_transformers_does():
    import transformers

    module = coverage()
    transformers.logging.disable_progress_bar()
    table = module.names()
    book = {recipe.model_type for recipe in recipes.all() if recipe.read_config is not None}
    opened = 0
    for kind in sorted(book & table.keys()):
        if any(kind in kinds.split() for kinds in module.TYPES.values()):
            with contextlib.suppress(UserError):  # a head that is not read
                opened += module.compare(table[kind]) <= module.TOLERANCE
    assert opened >= module.LEAST
