"""Plants bugs one at a time in a copy of the tree, runs the tests of the changed file, and prints
which bugs live.

    python tests/mutate.py [PATH ...] [--count N] [--seed S] [--tests "WORDS OF PYTEST"] [--rows]

PATHs are files or folders of ``src/glassformer``; without one, all of it. Bugs come from patterns
(a comparison flipped, a constant off by one, a guard dropped ...), drawn by the seed. The tests of
a module are ``tests/ROOM/test_NAME.py`` and those that ``tests/where.md`` names. For a kernel in C
the library is compiled anew, and its tests are ``tests/fast/kernels`` and those that the page names.
``--rows`` plants the rows of ``tests/mutants.md`` instead: the bugs that no pattern makes. Exit 1
when a bug lives.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import fnmatch
import hashlib
import importlib.util
import io
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/glassformer")
# bytes of data that a process of the tests may have: a bug in a size must not fill the machine
MEMORY = 12 << 30
GRACE = 30.0  # seconds that tests may take beyond five times what they take without a bug


class Change(NamedTuple):
    """One bug: the text from ``start`` to ``end`` becomes ``new``."""

    operator: str
    start: int
    end: int
    new: str

    def apply(self, text):
        return text[: self.start] + self.new + text[self.end :]


# ------------------------------------------------------------------------------- patterns, Python

PAIRS = (
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
)
OPPOSITES = dict(PAIRS) | {second: first for first, second in PAIRS}
EXTREMES = {"min": "max", "max": "min"}
# keywords whose loss changes no result of ours
UNTESTABLE = {"strict", "encoding", "stacklevel", "help"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}
# messages; and before 3.12 f-strings have no true positions
SKIPPED_NODES = (ast.Raise, ast.Assert, ast.JoinedStr)
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple)  # what "-" cannot join


def _nodes(parent):
    """All nodes that compute: no annotations, decorators, messages of errors."""
    for name, value in ast.iter_fields(parent):
        for node in value if isinstance(value, list) else [value]:
            if (
                name in SKIPPED_FIELDS
                or not isinstance(node, ast.AST)
                or isinstance(node, SKIPPED_NODES)
            ):
                continue
            if not (isinstance(node, ast.keyword) and node.arg in UNTESTABLE):
                yield node
                yield from _nodes(node)


def _is_text(node):
    return isinstance(node, TEXTS) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _changed_nodes(node):
    """The operators that apply to a node, and the source of what replaces it."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare():
            new.ops[0] = OPPOSITES[type(new.ops[0])]()
            yield "comparison", ast.unparse(new)
        case ast.BoolOp():
            new.op = OPPOSITES[type(new.op)]()
            yield "and/or", f"({ast.unparse(new)})"
        case ast.UnaryOp(op=ast.Not()):
            yield "not", f"({ast.unparse(new.operand)})"
        case ast.Constant(value=bool()):
            yield "boolean", str(not new.value)
        case ast.Constant(value=int()):
            yield "off by one", str(new.value + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub()) if not (_is_text(new.left) or _is_text(new.right)):
            if isinstance(new.op, ast.Sub):
                turned = copy.deepcopy(new)
                turned.left, turned.right = new.right, new.left
                yield "operands", ast.unparse(turned)
            new.op = OPPOSITES[type(new.op)]()
            yield "sign", ast.unparse(new)
        case ast.Call():
            for place, keyword in enumerate(new.keywords):
                if keyword.arg and keyword.arg not in UNTESTABLE:
                    less = copy.deepcopy(new)
                    del less.keywords[place]
                    yield "keyword", ast.unparse(less)
            called = ast.unparse(new.func)
            scope, dot, name = called.rpartition(".")
            if re.fullmatch("a?(min|max)|(min|max)imum", name):
                turned = re.sub("min|max", lambda match: EXTREMES[match[0]], name)
                yield "min/max", ast.unparse(new).replace(called, scope + dot + turned, 1)
        case ast.Expr(value=ast.Call()):
            yield "call", "pass"
        case ast.If(body=[ast.Raise()], orelse=[]):
            yield "guard", "pass"


def python_changes(text):
    """Every bug that the patterns make of a Python file."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.decode()))

    def place(line, column):  # an ast's columns count bytes
        return starts[line - 1] + len(lines[line - 1][:column].decode())

    for node in _nodes(ast.parse(text)):
        for operator, new in _changed_nodes(node):
            start = place(node.lineno, node.col_offset)
            change = Change(operator, start, place(node.end_lineno, node.end_col_offset), new)
            try:
                compile(change.apply(text), "planted", "exec")
            except SyntaxError:
                continue
            yield change


# ------------------------------------------------------------------------------------ patterns, C

C_PAIRS = dict(pair.split() for pair in ("< <=", "> >=", "== !=", "&& ||", "+ -", "+= -="))
C_OPPOSITES = C_PAIRS | {second: first for first, second in C_PAIRS.items()}
C_PATTERNS = {
    "comparison": r"(?<= )(?:[<>]=?|[!=]=)(?= )",
    "and/or": r"(?<= )(?:&&|\|\|)(?= )",
    "sign": r"(?<= )[-+]=?(?= )",
    "off by one": r"(?<![\w.])\d+(?![\w.])",
    "term": r" [-+*] \w+(?:(?:->|\.)\w+)*(?:\[[^][]*\])?(?![\w(.\[-])",
    "call": r"(?<=[;{}\n])[ \t]*\w+\([^;{}]*\)(?=;)",
}
C_SILENT = re.compile(
    r'//[^\n]*|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?!define)[^\n]*|^[ \t]*#define \w+', re.MULTILINE
)


def c_changes(text):
    """Every bug that the patterns make of a C file; comments, strings and includes stay."""
    code = C_SILENT.sub(lambda silent: " " * len(silent[0]), text)
    for operator, pattern in C_PATTERNS.items():
        for match in re.finditer(pattern, code):
            new = (
                str(int(match[0]) + 1)
                if operator == "off by one"
                else C_OPPOSITES.get(match[0], "")
            )
            yield Change(operator, match.start(), match.end(), new)


# ---------------------------------------------------------------------------------- rows by hand


class Row(NamedTuple):
    """A row of ``mutants.md``: where, what is wrong, the pattern, what replaces it, the tests."""

    file: Path
    function: str
    bug: str
    old: str
    new: str
    tests: list[str]

    def change(self, text):
        """None where the pattern is not there. ``...`` of a pattern matches anything, and stands
        for it in ``new``."""
        start = 0
        for name in filter(None, self.function.split(".")):
            results = re.compile(rf"^\s*(?:def|class) {name}\b", re.MULTILINE).search(text, start)
            if results is None:
                return None
            start = results.end()
        fixed = [re.escape(piece).replace(r"\ ", r"\s+") for piece in self.old.split("...")]
        match = re.compile("(.*?)".join(fixed)).search(text, start)
        if match is None:
            return None
        first, *remaining = self.new.split("...")
        new = first + "".join(
            group + piece for group, piece in zip(match.groups(), remaining, strict=False)
        )
        return Change(self.bug, match.start(), match.end(), new)


def rows(text):
    """The rows of its tables; ``\\|`` stands for ``|``."""
    results = []
    for line in text.splitlines():
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        change = re.fullmatch(r"`(.+)` => `(.*)`", cells[2]) if len(cells) == 4 else None
        if change is not None:
            file, _, function = cells[0].strip("`").partition(": ")
            tests = [
                f"tests/{word}" if word.endswith(".py") else word
                for word in shlex.split(cells[3].strip("`"))
            ]
            results.append(Row(Path(file), function, cells[1], change[1], change[2], tests))
    return results


# ------------------------------------------------------------------------------- planting, testing


class Mutant(NamedTuple):
    """A change of a file, and the words of pytest that must fail with it."""

    file: Path  # below SOURCE
    change: Change
    tests: tuple[str, ...]


def tests_of(module, root=ROOT):
    """The tests of a file below SOURCE, by its name and by ``tests/where.md``."""
    name = str(module.with_suffix("") if module.suffix == ".py" else module)
    if module.is_relative_to("core"):  # whose tests lie without it
        module = module.relative_to("core")
    if module.suffix != ".py":
        by_name = [module.parent]
    elif module.stem == "__init__":
        by_name = [module.parents[1] / f"test_{module.parent.name}.py", module.parent]
    else:
        by_name = [module.parent / f"test_{module.stem}.py"]
    result = [f"tests/{path}" for path in by_name if (root / "tests" / path).exists()][:1]
    page = (root / "tests/where.md").read_text(encoding="utf-8")
    for test, cell in re.findall(r"^\| `([\w/]+\.py)` \| (.*) \|$", page, re.MULTILINE):
        if any(fnmatch.fnmatch(name, item) for item in re.findall(r"`([\w/*.]+)`", cell)):
            result.append(f"tests/{test}")
    return tuple(dict.fromkeys(result))


def draw(paths, count, seed, root=ROOT):
    """Bugs from files and folders below SOURCE: the operators in turn, each at random places."""
    source = root / SOURCE
    files = sorted(
        {file for path in paths for file in [source / path, *(source / path).rglob("*")]}
    )
    ranks = Counter()
    candidates = []
    for file in (file for file in files if file.suffix in (".py", ".c", ".h")):
        changes = python_changes if file.suffix == ".py" else c_changes
        module = file.relative_to(source)
        candidates += [
            Mutant(module, change, ()) for change in changes(file.read_text(encoding="utf-8"))
        ]
    generator = random.Random(seed)
    generator.shuffle(candidates)
    turns = []
    for mutant in candidates:  # the first of each operator, then the second of each
        turns.append((ranks[mutant.change.operator], generator.random()))
        ranks[mutant.change.operator] += 1
    drawn = [mutant for _, mutant in sorted(zip(turns, candidates, strict=True))[:count]]
    return [
        mutant._replace(tests=tests_of(mutant.file, root))
        for mutant in sorted(drawn, key=lambda item: item.file)
    ]


class Tree:
    """A copy of the repository in which bugs are planted."""

    def __init__(self, folder, root=ROOT):
        self.root, self.folder = root, folder / "tree"
        ignored = shutil.ignore_patterns(".*", "node_modules", "out", "__pycache__", "*.egg-info")
        shutil.copytree(root, self.folder, ignore=ignored, symlinks=True)
        data = root.parent / "shared" / "data"
        self.environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if data.is_dir():
            self.environment.setdefault("GLASSFORMER_DATA", str(data))
        self.seconds = defaultdict(float)

    def build(self):
        """Compiles the kernels at -O1, in half the time, and only the objects that the bug changes;
        False where that fails."""
        spec = importlib.util.spec_from_file_location("hatch_build", self.folder / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        compile_one = module._run

        def run(command):
            if "-c" not in command:
                return compile_one(command)
            source = command[command.index("-c") + 1]
            output = command[-1]
            flags = command[: command.index("-c")]
            code = subprocess.run([*flags, "-E", source], check=True, capture_output=True).stdout
            digest = hashlib.sha256(" ".join(flags).encode() + code).hexdigest()
            cached = self.folder.parent / "objects" / digest
            if not cached.exists():
                compile_one(command)
                cached.parent.mkdir(exist_ok=True)
                shutil.copy(output, cached)
            shutil.copy(cached, output)

        module._run, module.FLAGS = run, module.FLAGS.replace("-O3", "-O1")
        with contextlib.redirect_stderr(io.StringIO()):
            return module.build() is not None

    def run(self, tests, limit):
        """The exit status of pytest; beyond ``limit`` seconds it is killed."""
        words = shlex.split("-m pytest -q -x -m 'not slow' -p no:cacheprovider")
        command = [sys.executable, *words, *tests]
        with (self.folder.parent / "log").open("w") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY)),
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return -signal.SIGKILL
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def check(self, tests):
        """Without a bug the tests pass; the time that they take bounds later runs."""
        if tests not in self.seconds:
            start = time.monotonic()
            status = self.run(tests, None)
            if status:
                log = (self.folder.parent / "log").read_text()[-2000:]
                raise SystemExit(
                    f"{log}\nWithout a bug pytest {shlex.join(tests)} ends with {status}; mend "
                    "that first."
                )
            self.seconds[tests] = time.monotonic() - start

    def plant(self, mutant):
        """``killed``, ``lived`` or ``not compiled``."""
        path = self.folder / SOURCE / mutant.file
        compiled = mutant.file.suffix != ".py"
        text = path.read_text(encoding="utf-8")
        self.check(mutant.tests)
        path.write_text(mutant.change.apply(text), encoding="utf-8")
        try:
            if compiled and not self.build():
                return "not compiled"
            return (
                "killed"
                if self.run(mutant.tests, GRACE + 5 * self.seconds[mutant.tests])
                else "lived"
            )
        finally:
            path.write_text(text, encoding="utf-8")
            if compiled:
                self.build()


def describe(mutant, text):
    """Place of the change, and its lines before and after."""
    lines = difflib.unified_diff(
        text.splitlines(), mutant.change.apply(text).splitlines(), lineterm="", n=0
    )
    line = text[: mutant.change.start].count("\n") + 1
    body = [f"    {line}" for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return "\n".join([f"{mutant.file}:{line}: {mutant.change.operator}", *body])


def main(words):
    parser = argparse.ArgumentParser(
        prog="mutate.py", description="Plants bugs and prints which ones the tests miss."
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="files or folders of src/glassformer"
    )
    parser.add_argument(
        "--count", type=int, default=20, help="bugs to plant (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: %(default)s)")
    parser.add_argument(
        "--tests", type=shlex.split, help="words of pytest, in place of the tests of each file"
    )
    parser.add_argument("--rows", action="store_true", help="the rows of tests/mutants.md")
    arguments = parser.parse_args(words)
    paths = [
        path.resolve().relative_to(ROOT / SOURCE) if path.exists() else path
        for path in arguments.paths
    ]
    if missing := [path for path in paths if not (ROOT / SOURCE / path).exists()]:
        parser.error(f"{missing[0]} is neither here nor below {SOURCE}")
    results = Counter()
    chosen = []
    if arguments.rows:
        for row in rows((ROOT / "tests/mutants.md").read_text(encoding="utf-8")):
            if paths and not any(row.file.is_relative_to(path) for path in paths):
                continue
            file = ROOT / SOURCE / row.file
            change = row.change(file.read_text(encoding="utf-8")) if file.exists() else None
            if change is None:
                print(
                    f"out of date   {row.file}: {row.function}: {row.bug}: change the row, or "
                    "drop it"
                )
                results["out of date"] += 1
            else:
                chosen.append(Mutant(row.file, change, tuple(row.tests)))
    else:
        chosen = draw(paths or [Path()], arguments.count, arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        for mutant in chosen:
            mutant = mutant._replace(tests=tuple(arguments.tests or mutant.tests))
            result = tree.plant(mutant) if mutant.tests else "untested"
            results[result] += 1
            print(
                f"{result:13} "
                f"{describe(mutant, (ROOT / SOURCE / mutant.file).read_text(encoding='utf-8'))}",
                flush=True,
            )
    print(", ".join(f"{count} {result}" for result, count in results.items()) or "nothing to plant")
    return 1 if results.keys() & {"lived", "untested", "out of date"} else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
