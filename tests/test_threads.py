"""Threads that a busy machine does not stop: how they wait, how many there are, what is said of
it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.fast import threads
from glassformer.fast.kernels import shared_library

VARIABLES = (*threads.WAITING, "OMP_NUM_THREADS", "MKL_NUM_THREADS")
SHOW = (  # in one write: two processes print into one pipe
    "import os; spin, cores = map(os.environ.get, ('GOMP_SPINCOUNT', 'OMP_NUM_THREADS')); "
    "os.write(1, f'spin {spin} threads {cores}\\n'.encode())"
)
COMMAND = "-m glassformer cost glass/200k --use {file}"
DOORS = {
    "python -m": f"{{python}} {COMMAND}",
    "command": "{python} {script} cost glass/200k --use {file}",
    "torchrun": f"{{python}} -m torch.distributed.run --nproc-per-node 2 {COMMAND}",
    "import": "{python} {notebook}",
}


def environment(**variables):
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables


@pytest.fixture
def no_torch(monkeypatch):
    """Simulates a process where torch is not yet loaded and the user set nothing."""
    monkeypatch.delitem(sys.modules, "torch")
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_sets_a_short_spin_before_torch_is_loaded(door, tmp_path):
    file = tmp_path / "show.py"
    script = tmp_path / "glassformer"
    notebook = tmp_path / "notebook.py"
    file.write_text(SHOW)
    script.write_text("import sys\nfrom glassformer.cli import main\nsys.exit(main())")
    notebook.write_text(f"import glassformer\n{SHOW}")
    line = DOORS[door].format(python=sys.executable, file=file, script=script, notebook=notebook)
    done = subprocess.run(line.split(), capture_output=True, text=True, env=environment())
    assert done.stdout.count(f"spin {threads.SPIN} ") == (2 if door == "torchrun" else 1), (
        done.stdout,
        done.stderr,
    )


@pytest.mark.skipif(shared_library.pool().value is None, reason="torch's OpenMP is not libgomp")
def test_the_openmp_of_torch_reads_it():
    output = environment(OMP_DISPLAY_ENV="verbose")
    done = subprocess.run(
        [sys.executable, "-c", "import glassformer, torch"],
        capture_output=True,
        text=True,
        env=output,
    )
    assert f"GOMP_SPINCOUNT = '{threads.SPIN}'" in done.stderr, done.stderr


@pytest.mark.parametrize("name", sorted(threads.WAITING))
def test_a_variable_of_the_user_stays(no_torch, monkeypatch, name):
    monkeypatch.setenv(name, "7")
    threads.prepare()
    assert os.environ[name] == "7"
    assert os.environ.get("GOMP_SPINCOUNT", "7") == "7"


def test_an_empty_variable_is_none_of_the_user(no_torch, monkeypatch):
    """As a file of Docker Compose sets one without a value."""
    monkeypatch.setattr(threads, "cores", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    threads.prepare()
    assert os.environ["GOMP_SPINCOUNT"] == str(threads.SPIN)
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_a_variable_that_does_not_say_how_threads_wait_changes_nothing(no_torch, monkeypatch):
    """scikit-learn sets this one when it is imported."""
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    threads.prepare()
    assert os.environ["GOMP_SPINCOUNT"] == str(threads.SPIN)


def test_nothing_is_set_once_torch_is_loaded(no_torch, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", os)
    monkeypatch.setattr(threads, "cores", lambda: 1)
    threads.prepare()
    assert not set(VARIABLES) & os.environ.keys()


V1 = {"cpu/docker/a/cpu.cfs_quota_us": "50000", "cpu/docker/a/cpu.cfs_period_us": "100000"}
QUOTAS = {  # the process's groups, their files, the cores of eight
    "none": ("0::/\n", {"cpu.max": "max 100000"}, 8),
    "container": ("0::/\n", {"cpu.max": "200000 100000"}, 2),
    "a fraction is rounded up": ("0::/\n", {"cpu.max": "250000 100000"}, 3),
    "less than a core": ("0::/\n", {"cpu.max": "10000 100000"}, 1),
    "more than the cores": ("0::/\n", {"cpu.max": "1600000 100000"}, 8),
    "of a group around it": (
        "0::/a/b\n",
        {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"},
        3,
    ),
    "path from outside": ("0::/docker/abc\n", {"cpu.max": "400000 100000"}, 4),
    "version 1": ("5:memory:/x\n2:cpu,cpuacct:/docker/a\n", V1, 1),
    "version 1, none": (
        "2:cpu:/\n",
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        8,
    ),
    "nonsense": ("hello\n::\n0::/\n", {"cpu.max": "many few"}, 8),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_leaves_fewer_threads(no_torch, monkeypatch, tmp_path, name):
    membership, contents, cores = QUOTAS[name]
    for path, text in contents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(threads, "GROUPS", str(tmp_path))
    monkeypatch.setattr(threads, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads.cores() == cores
    threads.prepare()
    assert os.environ.get("OMP_NUM_THREADS") == (None if cores == 8 else str(cores))


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_users_number_of_threads_stays(no_torch, monkeypatch, name):
    monkeypatch.setattr(threads, "cores", lambda: 0)
    monkeypatch.setenv(name, "5")
    threads.prepare()
    assert os.environ[name] == "5"
    assert os.environ.get("OMP_NUM_THREADS", "5") == "5"


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2,
    reason="one core, or not Linux",
)
def test_affinity_leaves_fewer_threads():
    code = (
        f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}}); import "
        f"glassformer; {SHOW}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment()
    )
    assert "threads 1" in done.stdout, done.stderr


COMPUTE = """
import glassformer, torch
from glassformer import config
from glassformer.core.nn import build_model
torch.set_num_threads(4)
block = config.Block(config.Attention(4), config.GatedMLP(512), config.RMSNorm())
model = build_model(config.Decoder(256, 256, config.Embed(97), config.Stack(2, (block,), config.Rotary())), seed=0)
model(torch.arange(512).reshape(4, 128) % 97).logits.square().mean().backward()
print(*(parameter.grad.double().sum().item().hex() for parameter in model.parameters()))
steps = glassformer.generate(model.eval(), None, [5] * 64, max_new=48, temperature=0, eos=())
print(*(step.logprob.hex() for step in steps))
"""


def test_threads_of_the_kernels_spin_no_longer():
    source = Path(shared_library.__file__).with_name("pool.c").read_text()
    assert int(re.search(r"SPINS = (\d+)", source)[1]) <= threads.SPIN


def test_how_threads_wait_changes_no_bit():
    """More threads than most small machines have cores, so that the kernels' threads sleep, too."""
    commands = [sys.executable, "-c", COMPUTE]
    printed = {
        subprocess.run(commands, check=True, capture_output=True, env=environment(**spin)).stdout
        for spin in ({}, {"OMP_WAIT_POLICY": "passive"})
    }
    assert len(printed) == 1
    assert len(printed.pop()) > 1000
