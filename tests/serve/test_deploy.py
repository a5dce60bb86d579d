"""The systemd unit and the Dockerfile: what they start is a command that we understand, and what
they copy is there."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from glassformer import cli

DEPLOY = Path(__file__).parents[2] / "deploy"


def understood(words: list[str]) -> object:
    """The arguments of a command line as our own parser reads them; it exits for others."""
    return cli.parser(["serve"]).parse(words)


def test_the_unit_starts_the_server_and_lets_it_drain(tmp_path):
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string((DEPLOY / "glassformer.service").read_text())
    program, *words = unit["Service"]["ExecStart"].split()
    assert program.endswith("/bin/glassformer") and words[0] == "serve"
    args = understood(words)
    assert args.api_key_file and args.host == "0.0.0.0"
    assert int(unit["Service"]["TimeoutStopSec"]) > args.drain
    assert unit["Service"]["KillSignal"] == "SIGTERM" and unit["Service"]["User"] != "root"


def test_systemd_takes_the_unit(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    text = (
        (DEPLOY / "glassformer.service")
        .read_text()
        .replace("/opt/glassformer/bin/glassformer", "/bin/true")
    )
    (tmp_path / "glassformer.service").write_text(text)
    done = subprocess.run(
        [analyze, "verify", str(tmp_path / "glassformer.service")], capture_output=True, text=True
    )
    lines = [line for line in done.stderr.splitlines() if "glassformer.service" in line]
    assert not lines, lines


def test_the_image_starts_the_server_and_copies_what_is_there():
    lines = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text()).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    listed = {
        "FROM",
        "WORKDIR",
        "RUN",
        "COPY",
        "USER",
        "ENV",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {step for step, _ in steps} == listed
    entry, words = (
        json.loads(next(remaining for step, remaining in steps if step == name))
        for name in ("ENTRYPOINT", "CMD")
    )
    assert entry[-1] == "serve" and understood(["serve", *words]).api_key_file
    for step, remaining in steps:
        if step == "COPY" and "--from" not in remaining:
            *sources, _ = remaining.split()
            assert all((DEPLOY.parent / source).exists() for source in sources), remaining
    assert dict(map(tuple, steps))["STOPSIGNAL"] == "SIGTERM"
    order = [step for step, _ in steps]
    assert order.index("USER") < order.index("ENTRYPOINT"), "it does not run as root"
    built = (DEPLOY.parent / "pyproject.toml").read_text()
    for name in re.findall(r'"/?(runs|hatch_build\.py)"', built):
        assert any(step == "COPY" and name in remaining for step, remaining in steps), (
            f"the build needs {name}"
        )
