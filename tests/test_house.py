"""What a reader pays for the house, held to ``budget.toml``: its ceilings may only fall.

Size is counted in expression nodes (``ast.expr``), for lines can be bought with width.
"""

from __future__ import annotations

import ast
import gc
import sys
import threading
import tomllib
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

import glassformer
import tiny

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "glassformer"
BUDGET = tomllib.loads((ROOT / "budget.toml").read_text(encoding="utf-8"))
VAGUE = frozenset(BUDGET["words"]["vague"].split())
FRAGMENT = ("What ", "Whether ", "Those ", "As ", "Who ", "Whose ", "Where ", "It ", "Of ", "How ")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}


def room_of(path):
    pieces = path.relative_to(SRC).parts
    return pieces[0] if len(pieces) > 1 else "loose"


def nodes_of(tree):
    return sum(isinstance(node, ast.expr) for node in ast.walk(tree))


def code_lines(path, tree):
    """Lines that are neither blank, comment nor docstring."""
    docs = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return sum(
        bool(text.strip()) and not text.lstrip().startswith("#") and n not in docs
        for n, text in lines
    )


def bindings(tree):
    """Each name that a module binds, with its line: variables, parameters, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


@pytest.mark.parametrize("room", sorted({room_of(path) for path in TREES}))
def test_a_room_stays_within_its_nodes(room):
    nodes = sum(nodes_of(tree) for path, tree in TREES.items() if room_of(path) == room)
    ceiling = BUDGET["nodes"].get(room)
    assert ceiling is not None, (
        f"{room} has no ceiling: name the capability that pays for it in budget.toml"
    )
    assert nodes <= ceiling, (
        f"{room} has {nodes} nodes, {nodes - ceiling} over its ceiling in budget.toml"
    )


def test_the_budget_names_no_room_that_is_gone():
    assert set(BUDGET["nodes"]) <= {room_of(path) for path in TREES}


def test_a_line_of_code_is_read_at_once():
    nodes = sum(map(nodes_of, TREES.values()))
    lines = sum(code_lines(path, tree) for path, tree in TREES.items())
    assert nodes / lines <= BUDGET["style"]["nodes_a_line"]


@pytest.mark.parametrize("folder", ["src", "tests", "benchmarks", "tools"])
def test_names_are_nouns_and_verbs(folder):
    names = [
        (name, path, line)
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in bindings(TREES.get(path) or ast.parse(path.read_text(encoding="utf-8")))
    ]
    vague = [
        f"{path.relative_to(ROOT)}:{line} {name}" for name, path, line in names if name in VAGUE
    ]
    share = 100 * len(vague) / len(names)
    assert share <= BUDGET["words"]["vague_percent"], (round(share, 2), vague[-20:])


def test_docstrings_are_sentences():
    fragments = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                doc = ast.get_docstring(node) or ""
                if doc.startswith(FRAGMENT):
                    line = getattr(node, "lineno", 1)
                    fragments.append(f"{path.relative_to(SRC)}:{line} {doc.splitlines()[0]}")
    assert len(fragments) <= BUDGET["words"]["fragment_docstrings"], fragments[-20:]


def test_type_names_are_defined_once():
    """A name belongs to a config and the module or trainer that it builds. A learner's file is apart."""
    homes = defaultdict(list)
    for path, tree in TREES.items():
        if "exercises" in path.parts:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(path.relative_to(SRC))
    repeated = {
        name: paths
        for name, paths in homes.items()
        if len(paths) > 1
        and not (len(paths) == 2 and sum(path.is_relative_to("core/config") for path in paths) == 1)
    }
    # Two slots of a run file take a ``Full``: a mask and a way to tune.
    assert repeated.keys() == {"Full"}, repeated


def test_module_names_stand_once():
    """A name belongs to a config and its module, or to a verb and the room that does it."""
    twins = ({"commands"}, {"core/config"}, {"families", "families/modules"})
    homes = defaultdict(list)
    for path in TREES:
        if path.stem != "__init__" and "exercises" not in path.parts:
            homes[path.stem].append(path.relative_to(SRC).parent.as_posix())
    repeated = {
        name: folders
        for name, folders in homes.items()
        if len(folders) > 1
        and not (len(folders) == 2 and any(pair <= {*folders} for pair in twins))
    }
    assert not repeated, repeated


class Walk:
    """The files of the package that a run enters; module bodies do not count."""

    def __init__(self):
        self.files = Counter()
        self.importing = Counter()

    def __call__(self, frame, event, arg):
        thread = threading.get_ident()
        if frame.f_code.co_name == "<module>":
            self.importing[thread] += {"call": 1, "return": -1}.get(event, 0)
        elif (
            event == "call"
            and not self.importing[thread]
            and frame.f_code.co_filename.startswith(str(SRC))
        ):
            self.files[frame.f_code.co_filename] += 1

    def check(self, name):
        """Fails where more files, or longer ones, were entered than the budget allows."""
        limit = BUDGET["walks"][name]
        lines = sum(len(Path(file).read_text(encoding="utf-8").splitlines()) for file in self.files)
        files = sorted(str(Path(file).relative_to(SRC)) for file in self.files)
        assert len(files) <= limit["files"], (len(files), files)
        assert lines <= limit["lines"], (lines, files)


@contextmanager
def watched():
    walk = Walk()
    gc.collect()  # what another test left runs nothing on its way out
    gc.disable()
    before = sys.getprofile()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
        gc.enable()


@pytest.fixture(scope="module")
def model_and_tokenizer():
    return glassformer.load(str(SRC / "models" / "tiny"))


def test_a_decode_step_is_read_in_one_sitting(model_and_tokenizer):
    model, tokenizer = model_and_tokenizer
    steps = iter(glassformer.generate(model, tokenizer, "To be", max_new=3))
    next(steps)
    with watched() as walk:
        next(steps)
    walk.check("decode_step")


def test_a_step_of_a_long_generation_is_read_in_an_hour(model_and_tokenizer):
    """Thirty-two tokens or more repay packed weights: the step goes through the room ``fast``."""
    model, tokenizer = model_and_tokenizer
    steps = iter(glassformer.generate(model, tokenizer, "To be"))
    next(steps)
    with watched() as walk:
        next(steps)
    walk.check("long_generation_step")


def test_a_training_step_is_read_in_one_sitting(tmp_path):
    from glassformer import data, tokenizer
    from glassformer.core.config import run
    from glassformer.core.nn import build_model
    from glassformer.core.training.batches import Batches
    from glassformer.core.training.causal import Causal

    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 400, encoding="utf-8")
    source = data.find(str(tmp_path / "text.txt"))
    shards = data.tokenise(
        source, tokenizer.train("char", source.texts()), cache=tmp_path / "shards"
    )
    model = build_model(tiny.ALL["llama"], seed=0)
    settings = run.Train(steps=3, optimizer=run.FROM_SCRATCH)
    steps = glassformer.train(model, Batches(shards, 4, 16, 0), Causal(), settings)
    next(steps)
    with watched() as walk:
        next(steps)
    walk.check("training_step")


def test_why_is_read_in_an_afternoon(capsys):
    from glassformer.cli import main

    with watched() as walk:
        assert not main(["why", str(SRC / "models" / "tiny"), "To be", "logits[-1,5]"])
    assert capsys.readouterr().out
    walk.check("why")


def test_a_completion_over_http_is_read_in_an_afternoon():
    """From the request's first byte to the answer's last, in every thread; the server was made before."""
    testclient = pytest.importorskip("starlette.testclient")
    pytest.importorskip("llguidance")
    from glassformer.serve.app import application
    from glassformer.serve.loading import open_models
    from glassformer.serve.served_models import EngineLimits

    with watched() as walk:  # before the engine's thread begins, so that it is watched too
        registry = open_models([str(SRC / "models" / "tiny")], EngineLimits(64, 2, 4, 1 << 24))
        app, _ = application(registry, "0", hosts=None, keys=None)
        with testclient.TestClient(app) as client:
            walk.files.clear()
            answer = client.post("/v1/completions", json={"prompt": "To be", "max_tokens": 2})
        registry.close()
    assert answer.status_code == 200, answer.text
    walk.check("completion")
