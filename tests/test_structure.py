"""The house stands: imports only go down, every config type has a module, nothing heavy loads
early."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import glassformer
from glassformer import config

SRC = Path(__file__).parents[1] / "src" / "glassformer"
NEEDS = {
    "core": set(),
    "families": {"core"},
    "fast": {"core"},
    "formats": {"core", "families", "fast"},
    "scale": {"core", "fast"},
    "runs": {"core", "families", "fast", "formats", "scale", "sight", "tasks"},
    "sight": {"core"},
    "tasks": {"core", "formats"},
    "learn": {"core", "sight", "families", "scale", "tasks"},
    "serve": {"core", "sight", "fast", "formats", "tasks", "scale"},
}
"""The rooms that a room may import; ``commands``, ``cli`` and the package's own page import all."""
DOORS = {"cli", "commands", "__main__", "__init__"}
TORCH_FREE = ("core/config", "core/tokenizer", "formats/data", "core/errors", "core/files")
TESTS = Path(__file__).parent
TOPICS = {
    "recording": {"transformers"},
    "learn": {"hostile"},
    "kernels": {"arm", "bounds"},
    "browser": {
        "chat",
        "tour",
        "vectors",
        "faults",
        "find",
        "flow",
        "heap",
        "looks",
        "live",
        "attention",
        "compare",
        "experts",
        "lens",
        "tokens",
        "train",
        "build",
        "numbers",
        "paths",
        "playground",
        "broken",
        "circuit",
        "sampler",
        "start",
        "speed",
        "access",
        "compute",
        "recorded",
    },
    "checkpoints": {"fuzz", "load_as"},
    "classics": {"words"},
    "commands": {"bad_input", "commands"},
    "config": {"extend", "mixer", "run_file_page"},
    "data": {"published"},
    "engine": {"beams", "isolation", "laws", "windows"},
    "generation": {"slide"},
    "sight": {"two_tokenizers"},
    "nn": {"decode", "engines", "eval_mode", "names", "parts"},
    "page": {"chat", "example", "recorded", "texts"},
    "scale": {"accidents", "laws"},
    "families": {
        "outside",
        "parity_decoders",
        "parity_encoders",
        "parity_more_decoders",
        "recipes",
        "sentence_folders",
    },
    "serve": {
        "bad_input",
        "chat",
        "checks",
        "clients",
        "deploy",
        "errors",
        "other_clients",
        "process",
    },
    "tokenizer": {"bad", "cuts", "fuzz", "hostile", "other_ids", "pairs", "trainers"},
    "tasks": {"objectives"},
    "training": {"accidents", "mutants", "order", "tune"},
}
"""What the tests of several modules are called, by their room."""


def imports(path):
    """(dotted name from the package's root or of another package, line) of each import in a
    file."""
    package = path.relative_to(SRC).parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    results = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            results += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                results.append((node.module or "", node.lineno))
            else:
                base = package[: len(package) - node.level + 1]
                names = [node.module] if node.module else [alias.name for alias in node.names]
                results += [
                    ("glassformer." + ".".join((*base, name)), node.lineno) for name in names
                ]
    return results


def room_of(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


FILES = sorted(SRC.rglob("*.py"))


def test_every_room_is_known():
    assert {room_of(path) for path in FILES} <= NEEDS.keys() | DOORS


def crossings():
    """Imports of a room that the table does not allow: "file:line room"."""
    crossed = []
    for path in FILES:
        room = room_of(path)
        for name, line in imports(path) if room in NEEDS else ():
            target = name.split(".")[1] if name.startswith("glassformer.") else room
            if target not in NEEDS[room] | {room}:
                crossed.append(f"{path.relative_to(SRC)}:{line} {target}")
    return crossed


@pytest.mark.parametrize("room", sorted(NEEDS))
def test_a_room_imports_what_the_table_allows(room):
    """The ceilings of budget.toml fall to zero as each seam is made."""
    ceilings = tomllib.loads((TESTS.parent / "budget.toml").read_text(encoding="utf-8"))
    crossed = [line for line in crossings() if line.startswith(f"{room}/")]
    assert len(crossed) <= ceilings["imports"].get(room, 0), crossed


def modules():
    """Every module of the package by its dotted name; a package's own page by the package's
    name."""
    named = {}
    for path in FILES:
        pieces = path.relative_to(SRC).with_suffix("").parts
        named[".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)] = path
    return named


def test_no_module_comes_back_to_itself():
    """No circle of imports, not even of those inside functions or for type checking."""
    named = modules()
    below = {}
    for module, path in named.items():
        result = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                package = path.relative_to(SRC).parts[:-1]
                base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
                home = ".".join(piece for piece in base if piece)
                inside = (f"{home}.{alias.name}".lstrip(".") for alias in node.names)
                result |= {item if item in named else home for item in inside}
        below[module] = result - {module, ""}
    # take away what imports nothing that is left, and what nothing that is left imports
    while True:
        imported = set[str]().union(*below.values())
        remaining = {
            m: value & below.keys()
            for m, value in below.items()
            if value & below.keys() and m in imported
        }
        if remaining == below:
            break
        below = remaining
    assert not below, below


def test_few_modules_stand_outside_the_rooms():
    loose = [path.stem for path in SRC.glob("*.py") if path.stem != "__init__"]
    assert len(loose) <= 6, loose


def test_a_test_is_found_by_the_name_of_what_it_tests():
    """``tests/ROOM/test_NAME.py`` tests ``ROOM/NAME.py``, or a folder of it; TOPICS are of several
    modules. The first folder of a room with folders is left out: ``tests/nn`` is of ``core/nn``."""
    named = [*modules(), *(name.partition(".")[2] for name in modules())]
    strange = []
    for path in sorted(TESTS.glob("*/**/test_*.py")):
        name = ".".join((*path.parent.relative_to(TESTS).parts, path.stem.removeprefix("test_")))
        if name not in named and path.stem.removeprefix("test_") not in TOPICS.get(
            path.parent.name, ()
        ):
            strange.append(name)
    assert not strange, strange


def test_the_test_of_a_module_is_found_by_its_name_or_on_a_page():
    """``tests/ROOM/test_NAME.py``, or the test that tests/where.md says, which speaks of the
    module."""
    rows = re.findall(
        r"^\| `([\w/]+)\.py` \| (.*) \|$",
        (TESTS / "where.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    output = {
        module: TESTS / f"{test}.py"
        for test, cell in rows
        for module in re.findall(r"`([\w/*]+)`", cell)
    }
    wrong = [module for module in output if not list(SRC.glob(f"{module}.py"))]
    for path in FILES:
        module = path.relative_to(SRC).with_suffix("")
        folders = (module.parent, Path(*module.parent.parts[1:]))
        if path.stem == "__init__" or any(
            (TESTS / folder / f"test_{path.stem}.py").exists() for folder in folders
        ):
            continue
        test = output.get(str(module)) or output.get(f"{module.parent}/*")
        if test is None:
            wrong.append(str(module))
            continue
        names = {
            node.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, DEFINED)
        }
        words = set(re.findall(r"\w+", test.read_text(encoding="utf-8")))
        wrong += [f"{test.name} says nothing of {module}"] * (not words & (names | {path.stem}))
    assert not wrong, f"give each a test of its name, or a row in tests/where.md: {wrong}"


DEFINED = (ast.FunctionDef, ast.ClassDef)


NAMED = re.compile(
    r"(?<![\w/.:>{}-])((?:[a-z_][\w-]*/)+(?:[\w-]+\.(?:py|md|c|h|toml|tsx?)\b|(?=`)))"
)
"""A path of a file, or of a folder in backticks."""
ELSEWHERE = {
    "site/",  # built: a fresh checkout has none
    "step-000500/",  # of a run
    "src/views/NAME.tsx",  # a view to be written
    "config/train_nano_moe.py",  # nanoMoE's
    "config/train_shakespeare_char.py",  # nanoGPT's
}


def prose(path):
    """What a file says to its reader: a test's strings name files that it makes, so of tests only
    docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py" or TESTS not in path.parents:
        return text
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def test_every_path_that_a_text_names_is_there():
    root = TESTS.parent
    rooms = [folder for folder in SRC.iterdir() if folder.is_dir()]
    web = root / "web"
    places = [root, SRC.parent, SRC, *rooms, TESTS, root / "docs", web, web / "src"]
    texts = [path for folder in (root, web) for path in folder.glob("*.md")]
    for folder in ("docs", "src", "tests", "benchmarks", "web/src"):
        texts += [
            path
            for path in (root / folder).rglob("*")
            if path.suffix in {".md", ".py", ".ts", ".tsx"}
        ]
    missing = [
        f"{path.relative_to(root)}: {name}"
        for path in texts
        for name in set(NAMED.findall(prose(path))) - ELSEWHERE
        if not any((place / name).exists() for place in (path.parent, *places))
    ]
    assert len(texts) > 500 and not missing, missing


def test_every_room_is_on_the_page_of_the_architecture():
    page = (TESTS.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]*)\|", page, re.MULTILINE)
    rooms = {name.rstrip("/") for row in rows for name in re.findall(r"`([a-z_]+/?)`", row)}
    assert rooms >= {room_of(path) for path in FILES} - {"__init__"}, {
        room_of(path) for path in FILES
    } - rooms


def test_every_module_of_the_core_is_on_the_page_of_the_architecture():
    page = (TESTS.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| `core/` |")[1].split("| room |")[0]
    rows = re.findall(r"^\| ([^|]*)\|", table, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([a-z_/]+[a-z_])`", row)]
    core = SRC / "core"
    modules = {path.relative_to(core).with_suffix("").as_posix() for path in core.rglob("*.py")}
    assert sorted(named) == sorted(name for name in modules if not name.endswith("__init__"))


def test_words_do_not_import_torch():
    words = [path for path in FILES if str(path.relative_to(SRC)).startswith(TORCH_FREE)]
    assert words
    assert not [
        path for path in words if "torch" in {name.split(".")[0] for name, _ in imports(path)}
    ]


def test_blocks_touch_no_files_and_no_network():
    barred = {
        "os",
        "pathlib",
        "urllib",
        "socket",
        "safetensors",
        "huggingface_hub",
        "json",
        "torch.distributed",
    }
    for path in (SRC / "core" / "nn").rglob("*.py"):
        names = {name for name, _ in imports(path)}
        assert not names & barred, (path.name, names & barred)


def test_no_pickle_is_run():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"pickle.load", "pickle.loads", "eval", "exec"}, (
                    path,
                    node.lineno,
                )
                assert called != "torch.load" or "weights_only=True" in ast.unparse(node), (
                    path,
                    node.lineno,
                )
                if called in {"np.load", "numpy.load"}:
                    assert "allow_pickle=True" not in ast.unparse(node), (path, node.lineno)
        names = {name.split(".")[0] for name, _ in imports(path)}
        assert not names & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}, path


WORDS_OF_DOCSTRINGS = {"Run": {"recipe", "from", "type"}}
"""What docstrings of dataclasses put in backticks that is neither a member nor a choice: keys of a
file."""


def test_docstrings_of_dataclasses_name_what_is_there():
    """Each ``word`` of one is a field, a method, a parameter, or a choice that a Literal of its
    module lists."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
    classes = {
        node.name: node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def members(node):
        inside = list(ast.walk(node))
        result = {
            item.id
            for item in inside
            if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
        }
        result |= {
            item.attr
            for item in inside
            if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Store)
        }
        result |= {item.name for item in inside if isinstance(item, ast.FunctionDef)}
        result |= {item.arg for item in inside if isinstance(item, ast.arg)}
        bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases} - {
            node.name
        }
        return result.union(*(members(classes[base]) for base in bases if base in classes))

    wrong = []
    for tree in trees:
        literals = [
            item
            for item in ast.walk(tree)
            if isinstance(item, ast.Subscript) and "Literal" in ast.unparse(item)
        ]
        choices = {
            item.value
            for literal in literals
            for item in ast.walk(literal)
            if isinstance(item, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and any(
                re.search("dataclass|frozen", ast.unparse(options))
                for options in node.decorator_list
            ):
                words = set(re.findall(r"``([a-z_][a-z_0-9]*)``", ast.get_docstring(node) or ""))
                words -= members(node) | choices | WORDS_OF_DOCSTRINGS.get(node.name, set())
                wrong += [f"{node.name}: {word}" for word in words]
    assert not wrong, wrong


def test_every_config_type_has_a_module():
    from glassformer.core.config.serial import members
    from glassformer.core.nn import makers

    modules = set(makers())  # the rooms that add types are imported by it
    types = {
        value
        for value in vars(config).values()
        if dataclasses.is_dataclass(value)
        and isinstance(value, type)
        and value.__module__.startswith("glassformer.")
    }
    slots = (config.Mixer, config.FeedForward, config.Block, config.Stack)
    slots += (config.Position, config.Embed, config.MaskRule)
    added = {kind for slot in slots for kind in members(slot).values()}
    assert types | added == modules


def test_every_public_name_is_there():
    """A package lists names that are loaded when they are asked for; each must still exist."""
    packages = ["glassformer"]
    packages += [
        module.name
        for module in pkgutil.walk_packages(glassformer.__path__, "glassformer.")
        if module.ispkg
    ]
    missing = [
        f"{name}.{public}"
        for name in packages
        for public in getattr(importlib.import_module(name), "__all__", ())
        if not hasattr(importlib.import_module(name), public)
    ]
    assert not missing


def test_importing_the_package_and_asking_for_help_load_no_torch():
    code = (
        "import sys, glassformer, glassformer.cli; assert 'torch' not in sys.modules and "
        "'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("kind", ["run file", "examples", "folder"])
def test_what_a_model_costs_is_said_without_torch(kind, tmp_path):
    name = "runs/demo.toml" if kind == "run file" else str(tmp_path)
    if kind == "examples":
        (tmp_path / "a.tsv").write_text("text\tlabel\n" + "one\t0\ntwo\t1\n" * 20)
        name = str(tmp_path / "run.toml")
        data = f'[data]\ntype = "Examples"\ntrain = "{tmp_path}/a.tsv"\ntokenizer = "char"\n'
        Path(name).write_text(
            f'[model]\nrecipe = "glass/encoder-1m"\n{data}[train]\nobjective = "Classify"\n'
        )
    elif kind == "folder":
        from glassformer.core.nn import build_model
        from glassformer.families import find
        from glassformer.formats import store

        store.save(build_model(find("glass/200k")), tmp_path)
    code = (
        f"import sys; from glassformer.cli import main; assert not main(['cost', {name!r}]), "
        "'torch' in sys.modules"
    )
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode and "parameters" in done.stdout, done.stderr


@pytest.mark.parametrize("word", ["--help", "help", "--version"])
def test_help_imports_next_to_nothing(word):
    """A busy machine takes ten times as long for each import, so modules are counted: 29, 120 with
    argparse."""
    code = (
        "import sys; before = {*sys.modules}; from glassformer.cli import main; code = "
        "main(sys.argv[1:])"
    )
    code += "; print(*sorted({*sys.modules} - before), file=sys.stderr); sys.exit(code)"
    # -S: what a virtual environment imports is not ours
    command = [sys.executable, "-S", "-c", code, word]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(SRC.parent)}, capture_output=True, text=True, check=True
    )
    modules = set(done.stderr.split())
    assert "glassformer.cli" in modules
    assert "glassformer" in done.stdout
    assert not modules & {
        "argparse",
        "dataclasses",
        "json",
        "pathlib",
        "re",
        "rich",
        "tomllib",
        "typing",
    }
    assert len(modules) <= 35, modules


def test_help_of_a_command_imports_only_what_shows_it():
    code = (
        "import contextlib, io, sys; before = {*sys.modules}\n"
        "from glassformer.cli import main\n"
        "from glassformer.commands import VERBS\n"
        "for verb in VERBS:\n"
        "    with contextlib.suppress(SystemExit): main([verb, '--help'])\n"
        "print(*{*sys.modules} - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stderr.split())
    assert "glassformer.commands.generate" in modules
    assert "usage: glassformer train" in done.stdout
    assert not modules & {"torch", "numpy", "tomllib", "hashlib", "tempfile", "secrets"}


@pytest.mark.parametrize("limit", [700])
def test_a_file_fits_in_the_head(limit):
    long = {
        str(p.relative_to(SRC)): n for p in FILES if (n := len(p.read_text().splitlines())) > limit
    }
    assert not long, long
