"""What a user installs: run files as data, types, an sdist that can run its tests; and systems that
lack a part."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from folders import read_json
from glassformer.runs import run_config, run_file
from mistakes import mistake

ROOT = Path(__file__).parents[1]
LOCKS = ("pyproject.toml", "constraints.txt")


def compilers():
    """Compilers that hatch_build.py would use here."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compilers(module.machine()) if module.machine() in module.TARGETS else []


def test_run_files_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "demo" in run_file.run_files()
    assert "compare/sst2-rnn" in run_file.run_files()
    assert (
        run_file.read_run("demo")
        == run_file.read_run("runs/demo.toml")
        == run_file.read_run(ROOT / "runs" / "demo.toml")
    )
    Path("demo").write_text("[train]\nsteps = 7\n")
    assert run_file.read_run("demo").train.steps == 7, "a file of the user's own goes first"
    with mistake(r'no run file "multi3k".* "multi30k"'):
        run_file.read_run("multi3k")
    with mistake("no run file"):
        run_file.read_run("nothing/like/it")


def test_every_run_file_can_be_read():
    for name in run_file.run_files():
        assert isinstance(run_file.read_run(name), run_config.Run)


def licences():
    """The licence of each package in the page, name and version first, in one line since bundling
    indents lines."""
    packages = read_json(ROOT / "web/package-lock.json")["packages"]
    bundled = {
        path.removeprefix("node_modules/"): package["version"]
        for path, package in packages.items()
        if path and not package.get("dev")
    }
    assert {"preact", "@preact/signals", "@preact/signals-core"} <= set(bundled)
    _, *notices = re.split(
        r"\n-+\n\n", (ROOT / "src/glassformer/static/THIRD_PARTY.txt").read_text(encoding="utf-8")
    )
    assert [notice.split(" (")[0] for notice in notices] == sorted(
        f"{name} {bundled[name]}" for name in bundled
    )
    for notice in notices:
        assert "Copyright (c)" in notice
        assert "Permission is hereby granted" in notice
        assert "NO EVENT" in notice
    return [" ".join(notice.split()) for notice in notices]


def test_the_page_names_the_packages_in_it():
    """Each of its bundles, and the file of licences that a wheel carries."""
    static = ROOT / "src/glassformer/static"
    app = "".join(path.read_text(encoding="utf-8") for path in static.glob("*-*.js"))
    bundles = [
        app,
        *((static / name).read_text(encoding="utf-8") for name in ("inline.js", "sandbox.js")),
    ]
    for text in licences():
        for bundle in bundles:
            assert text in " ".join(bundle.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"LICENSE", "src/glassformer/static/THIRD_PARTY.txt"} <= set(project["license-files"])


def pins(name):
    """The versions of each package in a file of requirements/, each with a hash; no index is named
    there."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    versions = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        pinned = re.match(r"([a-z0-9-]+)==([^\s;]+)", entry)
        assert pinned and re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry
        versions.setdefault(pinned[1], set()).add(pinned[2])
    return versions


def requirements(extra):
    """Requirements of this extra in pyproject.toml, those of our own extras among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requests = [*project["dependencies"], *project["optional-dependencies"][extra]]
    direct = [Requirement(line) for line in requests]
    inner = [name for item in direct if item.name == "glassformer" for name in item.extras]
    return [item for item in direct if item.name != "glassformer"] + [
        two for name in inner for two in requirements(name)
    ]


@pytest.mark.parametrize("extra", ["dev", "page-test", "plot", "serve"])
def test_what_is_asked_for_is_pinned_with_hashes(extra):
    """torch alone is pinned by its version: constraints.txt says why."""
    versions = pins(extra)
    build = pins("build")
    torch = dict(
        re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    assert list(torch) == ["torch"]
    for requirement in requirements(extra):
        name = canonicalize_name(requirement.name)
        pinned = {torch["torch"]} if name == "torch" else versions.get(name, set())
        assert pinned and all(requirement.specifier.contains(item) for item in pinned), (
            f"{requirement}: run make lock"
        )
    assert all(
        pins("dev").get(name, pinned) == pinned for name, pinned in (versions | build).items()
    )


def test_what_builds_the_package_is_pinned_with_hashes():
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    for requirement in map(Requirement, system["requires"]):
        assert all(
            requirement.specifier.contains(pin)
            for pin in pins("build")[canonicalize_name(requirement.name)]
        )


def test_what_make_test_installed_is_pinned_with_hashes():
    """Each distribution that the extra ``dev`` brings along, at the version that is installed."""
    if not list(Path(sys.prefix).glob(".ready-dev*")):
        pytest.skip("make test did not set up this environment")
    versions = pins("dev")
    free = {"torch", "glassformer"}
    waiting = [(requirement.name, tuple(requirement.extras)) for requirement in requirements("dev")]
    observed = set[tuple[str, tuple[str, ...]]]()
    while waiting:
        name, extras = waiting.pop()
        name = canonicalize_name(name)
        if (
            (name, extras) in observed
            or name in free
            or name.startswith(("nvidia-", "cuda-", "triton"))
        ):
            continue
        observed.add((name, extras))
        distribution = importlib.metadata.distribution(name)
        assert distribution.version in versions.get(name, ()), (
            f"{name} {distribution.version} is not pinned: make lock"
        )
        for requirement in map(Requirement, distribution.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((requirement.name, tuple(sorted(requirement.extras))))
    assert len(observed) > 150


def test_every_pip_line_names_what_exists():
    """An extra that a message or a page names is one of pyproject.toml; so is a package."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    packages = {
        canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines
    }
    files = [*ROOT.glob("*.md"), *(path for path in (ROOT / "deploy").iterdir() if path.is_file())]
    for folder in ("src", "docs", "notebooks", "tests"):
        files += [
            path for ext in ("py", "md", "ipynb") for path in (ROOT / folder).rglob(f"*.{ext}")
        ]
    named_extras = set()
    for path in files:
        text = path.read_text(encoding="utf-8")
        for line in re.findall(r"pip install ((?:[^\n]|\n#)*)", text):
            for name, extra in re.findall(r"(\S*?)\[([a-z,-]+)\]", line):
                if name.strip("'\"").partition("/")[0] in ("glassformer", "WHEEL", ".", ""):
                    assert set(extra.split(",")) <= extras.keys() - {"{extra}"}, (path, line)
                    named_extras |= set(extra.split(","))
        # no index has it, so a stranger's might be fetched
        assert not re.search(r"pip install [^\n`]*\bglassformer\b(?![\[\\.*-])", text), path
    assert {"serve", "page", "all"} <= named_extras
    messages = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    names = {
        canonicalize_name(name)
        for line in re.findall(r"pip install ([a-z][\w -]*)[.,;]", messages)
        for name in line.split()
    }
    packages -= {"glassformer"}
    assert names <= packages | {"ziglang"}, names - packages


@pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="an sdist has no workflows")
def test_what_is_tested_and_released_is_installed_by_hash():
    """torch by its version, and ours from its sources without what pip would fetch to build it."""
    files = [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "deploy/Dockerfile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files).replace("\\\n", " ")
    lines = [line.strip() for line in re.findall(r"pip install ([^\n&]+)", text)]
    assert len(lines) >= 8
    for line in lines:
        by_hash = "--no-deps --require-hashes" in line
        torch = line.endswith("torch") and "-c constraints.txt" in line
        sources = re.search(r"--no-deps --no-build-isolation (-e )?\.$", line)
        assert by_hash or torch or sources, line


NPM = [("ENOTFOUND registry.npmjs.org", 0, "NOT compared"), ("EINTEGRITY", 2, "npm ci failed")]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("error, code, words", NPM)
def test_an_npm_that_fails_is_heard_of(tmp_path, error, code, words):
    """Without it nobody compares the page with its sources."""
    npm = tmp_path / "bin/npm"
    for path in (npm, *(tmp_path / name for name in ("web/package-lock.json", *LOCKS))):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    npm.write_text(f"#!/bin/sh\necho 'npm error {error}' >&2\nexit 1\n")
    npm.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)

    def make(*targets):
        env = {name: text for name, text in os.environ.items() if "MAKE" not in name}
        env["PATH"] = f"{npm.parent}:{env['PATH']}"
        return subprocess.run(
            ["make", *targets], cwd=tmp_path, env=env, capture_output=True, text=True
        )

    done = make("web/node_modules/.package-lock.json")
    assert done.returncode == code and words in done.stdout, done
    assert all("npm ci" in make("-n", target).stdout for target in ("test", "test-all"))


def test_the_version_is_one():
    import glassformer

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version == glassformer.__version__


def test_kernels_are_compiled_once(tmp_path, monkeypatch):
    """A second install takes the library that the first one made, until a source changes."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compilations = []

    def compile_(compiler, builds, library):
        compilations.append(1)
        library.write_bytes(b"library")

    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(module, "_compile", compile_)
    monkeypatch.setattr(module, "compilers", lambda target: [[sys.executable]])
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module.sys, "platform", "linux")
    (tmp_path / "pool.c").write_text("int x;")
    assert module.build() == module.build() == [sys.executable] and len(compilations) == 1
    (tmp_path / "pool.c").write_text("int y;")
    assert module.build() and len(compilations) == 2
    (tmp_path / "libkernels.so").write_bytes(b"another")
    assert module.build() and len(compilations) == 3


LACKING = """
import sys, signal
sys.modules["fcntl"] = None
del signal.SIGHUP
import glassformer.cli
glassformer.cli.parser(glassformer.cli.VERBS)
import glassformer.runs.launch, glassformer.core.generation, glassformer.tasks.evaluation, glassformer.commands.compare
from pathlib import Path
try:
    with glassformer.runs.launch.lock(Path(sys.argv[1]), "training"):
        pass
except glassformer.UserError as error:
    print(error)
"""


def test_imports_live_without_what_windows_lacks(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", LACKING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert result.stdout == "Glassformer runs on Linux and macOS; on Windows use it inside WSL.\n"


@pytest.mark.slow
def test_a_wheel_and_an_sdist_hold_what_is_needed(tmp_path):
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    wheel = next(tmp_path.glob("*.whl"))
    sdist = next(tmp_path.glob("*.tar.gz"))
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        assert {
            "glassformer/py.typed",
            "glassformer/run_files/demo.toml",
            "glassformer/models/tiny/model.safetensors",
        } <= names
        static = ROOT / "src" / "glassformer" / "static"
        built = {
            f"glassformer/static/{path.name}"
            for path in static.iterdir()
            if not path.name.startswith(".")
        }
        assert built <= names
        assert "glassformer/static/index.html" in names
        site = [item for item in opened.infolist() if item.filename.startswith("glassformer/site/")]
        assert bool(site) == (ROOT / "src" / "glassformer" / "site" / "index.html").exists(), (
            "built, it goes along"
        )
        assert sum(item.file_size for item in site) < 16_000_000  # as tests/test_site.py allows
        kernels = "glassformer/fast/kernels/libkernels.so"
        assert (
            any(name in names for name in (kernels, kernels.replace(".so", ".dylib")))
            == bool(compilers())
            == ("none-any" not in wheel.name)
        )
        opened.extractall(tmp_path / "wheel")
    result = subprocess.run(
        [sys.executable, "-m", "glassformer", "cost", "runs/demo.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "wheel")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0 and "parameters" in result.stdout, result.stderr
    with tarfile.open(sdist) as opened:
        assert not [name for name in opened.getnames() if name.endswith(".so")], (
            "an sdist is compiled where it is installed"
        )
        opened.extractall(tmp_path, filter="data")
    unpacked = next(path for path in tmp_path.iterdir() if (path / "Makefile").exists())
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "tests/test_structure.py",
            "tests/config/test_run.py",
            "tests/test_laws.py",
        ],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": str(unpacked / "src")},
        check=True,
    )


NOTEBOOK = """
import nbclient, nbformat, sys
from pathlib import Path
book = nbformat.read(sys.argv[1], as_version=4)
install = nbformat.v4.new_code_cell("%pip install -q glassformer-*.whl")
asked = nbformat.v4.new_code_cell("import glassformer; print(glassformer.__file__)")
book.cells = [install, asked, *book.cells]
done = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", coalesce_streams=True).execute()
print(done.cells[1].outputs[0].text)
nbformat.write(nbformat.v4.new_notebook(cells=done.cells[2:], metadata=done.metadata), "ran.ipynb")
"""


@pytest.mark.slow
def test_a_wheel_by_itself_as_a_notebook_installs_it(tmp_path):
    """An environment without our sources, offline: a notebook's %pip line, its stored outputs, and
    the site's place."""
    pytest.importorskip("hatchling")
    from test_notebooks import NOTEBOOKS, differing, read_notebook

    wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(wheel, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with_site = (ROOT / "src" / "glassformer" / "site" / "index.html").exists()
    assert next(tmp_path.glob("*.whl")).stat().st_size < (20_000_000 if with_site else 10_000_000)
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    (individual,) = (tmp_path / "env").glob("lib/python*/site-packages")
    # torch and the rest, not what is editable
    (individual / "beside.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "GLASSFORMER_DATA": "/nowhere",
        "OMP_NUM_THREADS": "1",
    }
    body = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    ran = subprocess.run([binaries / "python", "-c", NOTEBOOK, str(NOTEBOOKS[0])], **body)
    assert ran.returncode == 0 and str(individual) in ran.stdout, ran.stderr[-2000:]
    result = differing(read_notebook(NOTEBOOKS[0]), read_notebook(tmp_path / "ran.ipynb"))
    assert not result, result
    actual_result = subprocess.run([binaries / "glassformer", "docs", "--print"], **body)
    if (ROOT / "src" / "glassformer" / "site" / "index.html").exists():
        assert (
            actual_result.stdout.strip()
            == (individual / "glassformer" / "site" / "index.html").as_uri()
        )
    else:
        assert actual_result.returncode == 2
        assert "make docs" in actual_result.stderr
