"""Runs under torchrun whose processes are killed, stopped and started again: nothing is lost and
nothing hangs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from glassformer.core import files
from many import environment, free_port

pytestmark = pytest.mark.slow
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
KILLS = int(os.environ.get("GLASSFORMER_KILLS", "100"))
# fmt: off
SETTINGS = """
    --recipe glass/200k --decoder.depth 2 --context 24 --decoder.dropout 0.1 --data.tokenizer char --data.valid 0.2
    --batch 8 --accumulate 4 --evaluate_every 20 --save_every 2 --keep 3 --sample_every 0 --dtype float32
    --tensorboard false --early_stop 0 --evaluate_batches 2 --parallel.timeout 60
""".split()  # noqa: SIM905
# fmt: on


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def words(folder, out, steps, *more):
    text = folder / "text.txt"
    if not text.exists():
        draw = random.Random(0)
        listed = ["the", "cat", "dog", "owl", "saw", "met", "a"]
        text.write_text("\n".join(" ".join(draw.choices(listed, k=9)) for _ in range(300)))
    args = ["--data.train", str(text), "--out", str(folder / out), "--steps", str(steps)]
    return ["-m", "glassformer", "train", *SETTINGS, *args, *more]


def launch(many, message, restarts=0, output=None):
    """A launch whose standard error is read at its end, or goes to the file ``output`` where it is
    long."""
    options = ["--nproc-per-node", str(many), "--max-restarts", str(restarts)]
    fields = {"env": ONE_THREAD, "text": True}
    if output is None:
        return subprocess.Popen([*LAUNCH, *options, *message], stderr=subprocess.PIPE, **fields)
    with output.open("a") as file:
        return subprocess.Popen([*LAUNCH, *options, *message], stderr=file, **fields)


def run_alone(folder, steps, *more):
    """A run on one process that nobody disturbs, in the folder ``alone``."""
    command = [sys.executable, *words(folder, "alone", steps, *more)]
    subprocess.run(command, env=ONE_THREAD, check=True)


def workers(launched):
    result = subprocess.run(
        ["ps", "--ppid", str(launched.pid), "-o", "pid="], capture_output=True, text=True
    )
    return [int(word) for word in result.stdout.split()]


def wait_for(path, launched):
    while not path.exists():
        assert launched.poll() is None, launched.stderr.read()
        time.sleep(0.1)


def sums(out):
    return files.sha256(sorted(out.glob("step-*"))[-1] / "SHA256SUMS")


def pause(launched, seconds):
    until = time.monotonic() + seconds
    while launched.poll() is None and time.monotonic() < until:
        time.sleep(0.05)


def wait_for_training(launched, log):
    """Until it has logged a step since now."""
    before = log.stat().st_mtime if log.exists() else 0.0
    while launched.poll() is None and (not log.exists() or log.stat().st_mtime == before):
        time.sleep(0.05)


@pytest.mark.timeout(120 * KILLS + 600)
def test_many_random_kills_of_one_of_all_and_of_the_agent_lose_nothing(tmp_path):
    steps = 100 + 6 * KILLS
    draw = random.Random(5)
    killed = 0
    kinds = dict.fromkeys(("one", "all", "agent"), 0)
    run_alone(tmp_path, steps)
    out = tmp_path / "killed"
    output = tmp_path / "told"
    launched = None
    while True:
        if launched is None:
            exists = (out / "run.json").exists()
            message = words(tmp_path, "killed", steps, *["--resume"] * exists)
            launched = launch(draw.choice((2, 4)), message, 2 * KILLS, output)
        if killed == KILLS:
            launched.wait()
        elif draw.random() < 2 / 3:
            wait_for_training(launched, out / "log.jsonl")
        else:
            pause(launched, draw.uniform(0, 10))  # of which most is the start
        pause(launched, draw.uniform(0, 1))
        if launched.poll() is not None:
            assert launched.returncode == 0, output.read_text()[-5000:]
            break
        if not (them := workers(launched)):
            continue
        kind = draw.choice(("one", "one", "all", "agent"))
        for pid in {"one": [draw.choice(them)], "all": them, "agent": [launched.pid, *them]}[kind]:
            os.kill(pid, signal.SIGKILL)
        killed, kinds[kind] = killed + 1, kinds[kind] + 1
        if kind == "agent":
            launched.wait()
            launched = None
    print(f"{killed} kills: {kinds}")
    assert sums(out) == sums(tmp_path / "alone")


@pytest.mark.parametrize("whom", ["one", "agent"])
def test_a_signal_to_any_of_them_saves_and_ends_all(tmp_path, whom):
    launched = launch(2, words(tmp_path, "stopped", 5000))
    wait_for(tmp_path / "stopped" / "step-000004", launched)
    os.kill(launched.pid if whom == "agent" else workers(launched)[1], signal.SIGTERM)
    _, message = launched.communicate(timeout=90)
    assert launched.returncode != 0
    assert message.count("Stopped by SIGTERM after step") == 1
    assert "--resume" in message


def test_a_second_launch_into_the_folder_is_refused_in_one_sentence(tmp_path):
    first = launch(2, words(tmp_path, "out", 5000))
    wait_for(tmp_path / "out" / "step-000002", first)
    second = launch(2, words(tmp_path, "out", 5000, "--resume"))
    _, message = second.communicate(timeout=120)
    assert second.returncode != 0
    assert message.count("glassformer: Another process is training in") == 1
    # torchrun shows a traceback of its own, the training none
    assert "glassformer/cli.py" not in message
    os.kill(first.pid, signal.SIGTERM)
    first.communicate(timeout=90)


def test_a_process_that_is_slow_beyond_the_timeout_ends_all(tmp_path):
    launched = launch(2, words(tmp_path, "slow", 5000, "--parallel.timeout", "5"))
    wait_for(tmp_path / "slow" / "step-000004", launched)
    stopped = workers(launched)[1]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    try:
        _, message = launched.communicate(timeout=90)
    finally:
        os.kill(stopped, signal.SIGCONT) if Path(f"/proc/{stopped}").exists() else None
    assert launched.returncode != 0 and time.monotonic() - began < 60, message
    assert message.count("was lost or did not answer within 5 s") == 1
    assert "glassformer/cli.py" not in message


def test_a_first_process_that_is_killed_is_a_sentence_of_the_other_without_torchs_frames(tmp_path):
    """It hosts the store where no agent does."""
    message = words(tmp_path, "out", 5000)
    port = free_port()
    first, second = (
        subprocess.Popen(
            [sys.executable, *message],
            env=environment(rank, 2, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    wait_for(tmp_path / "out" / "step-000004", first)
    first.kill()
    _, written = second.communicate(timeout=90)
    first.communicate()
    assert second.returncode == 2 and len(written.strip().splitlines()) == 1, written
    assert "was lost or did not answer within 60 s (" in written
    assert ".cc" not in written


AXES = {
    "tensor": [],
    "pipeline": [],
    "expert": [
        "--decoder.pattern.feedforward",
        '{type = "MoE", experts = 4, top_k = 2, expert = {type = "GatedMLP", hidden = 24}}',
    ],
}


@pytest.mark.parametrize("axis", list(AXES))
def test_a_killed_process_of_another_axis_loses_nothing(tmp_path, axis):
    """The bytes of a run that nobody disturbed on the same axis; its first step is that of one
    process within 1e-5."""
    more = [*AXES[axis], f"--parallel.{axis}", "2"]
    output = tmp_path / "told"
    run_alone(tmp_path, 2, *AXES[axis])
    full = launch(2, words(tmp_path, "whole", 60, *more), 0, output)
    assert full.wait(300) == 0, output.read_text()[-5000:]
    launched = launch(2, words(tmp_path, "killed", 60, *more), 10, output)
    out = tmp_path / "killed"
    for turn in range(3):
        wait_for_training(launched, out / "log.jsonl")
        pause(launched, 0.3)
        them = workers(launched)
        assert len(them) == 2, output.read_text()[-5000:]
        os.kill(them[turn % 2], signal.SIGKILL)
    assert launched.wait(300) == 0, output.read_text()[-5000:]
    assert sums(out) == sums(tmp_path / "whole")
    item, shared = (
        json.loads((tmp_path / name / "log.jsonl").open().readline()) for name in ("alone", "whole")
    )
    for fact in ("loss", "grad_norm"):
        assert shared[fact] == pytest.approx(item[fact], rel=1e-5)


def test_a_pause_holds_all_of_them_and_changes_no_bit(tmp_path):
    run_alone(tmp_path, 200)
    out = tmp_path / "held"
    launched = launch(2, words(tmp_path, "held", 200))
    wait_for(out / "step-000004", launched)
    (out / "pause").touch()
    pause(launched, 3)  # the step that was begun is finished
    before = (out / "log.jsonl").read_text()
    pause(launched, 5)
    assert launched.poll() is None
    assert (out / "log.jsonl").read_text() == before
    (out / "pause").unlink()
    _, message = launched.communicate(timeout=300)
    assert launched.returncode == 0 and 0 < before.count("\n") < 200, message
    assert sums(out) == sums(tmp_path / "alone")


SRUN = """
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
exec "$@"
"""


def test_processes_that_srun_starts_need_no_torchrun(tmp_path):
    """docs/scale.md describes it; srun itself is not installed, its variables are set."""
    run_alone(tmp_path, 20)
    env = ONE_THREAD | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "SLURM_NTASKS": "2",
    }
    message = words(tmp_path, "both", 20)
    results = []
    for rank in range(2):
        fields = {
            **env,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "SLURM_NTASKS_PER_NODE": "2",
        }
        results.append(
            subprocess.Popen(["bash", "-c", SRUN, "bash", sys.executable, *message], env=fields)
        )
    assert [result.wait(200) for result in results] == [0, 0]
    assert sums(tmp_path / "both") == sums(tmp_path / "alone")


HOSTS = ("10.77.0.1", "10.77.0.2")


@pytest.fixture
def hosts():
    """Two hosts of one network, each a namespace of this machine's."""
    names = [f"gf{os.getpid() % 100000}{letter}" for letter in "ab"]

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        for name, address in zip(names, HOSTS, strict=True):
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no rights to make network namespaces: {error}")
    yield names
    for name in names:
        ip("netns", "del", name)


def on_hosts(names, port, message, output):
    results = []
    for name, address in zip(names, HOSTS, strict=True):
        options = (
            f"--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --local-addr {address}"
            f" --rdzv-endpoint {HOSTS[0]}:{port} --rdzv-id two"
            # both have one name, so it cannot tell
            f" --rdzv-conf is_host={address == HOSTS[0]}"
        )
        line = f"ip netns exec {name} {sys.executable} -m torch.distributed.run {options}"
        env = {**ONE_THREAD, "GLOO_SOCKET_IFNAME": name}
        with output.open("a") as file:
            command = [*line.split(), *message]
            results.append(subprocess.Popen(command, env=env, stderr=file, text=True))
    return results


def test_two_hosts_of_which_one_is_killed(hosts, tmp_path):
    run_alone(tmp_path, 60)
    out = tmp_path / "both"
    output = tmp_path / "told"
    first, second = on_hosts(hosts, 29500, words(tmp_path, "both", 60), output)
    while not (out / "step-000004").exists():
        assert first.poll() is None, output.read_text()
        time.sleep(0.05)
    for pid in (*workers(second), second.pid):
        os.kill(pid, signal.SIGKILL)
    assert first.wait(120) != 0
    assert not any(out.glob(".*.part"))
    assert "was lost or did not answer" in output.read_text()
    assert "glassformer/cli.py" not in output.read_text()
    for launched in on_hosts(hosts, 29501, words(tmp_path, "both", 60, "--resume"), output):
        assert launched.wait(300) == 0, output.read_text()[-5000:]
    assert sums(out) == sums(tmp_path / "alone")
