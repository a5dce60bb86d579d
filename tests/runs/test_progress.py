"""The progress of a training as a person sees it: others who take the machine."""

from __future__ import annotations

import os

from glassformer.runs import progress


def test_what_is_said_of_a_shared_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "TASKS", tmp_path)
    tasks = [tmp_path / "1", tmp_path / "2"]
    for task in tasks:
        task.mkdir()

    def write(computed, waited):
        for task in tasks:
            (task / "schedstat").write_text(f"{computed} {waited} 99\n")

    write(100, 50)
    contention = progress.Contention()
    write(1100, 50)
    assert contention.describe() == ""
    write(2100, 1550)
    assert contention.describe() == "shared, waits 60% of the time"
    write(3100, 1650)
    assert contention.describe() == ""
    for task in tasks:  # another system
        (task / "schedstat").unlink()
    contention = progress.Contention()
    for load, words in ((2.9, ""), (12.3, "shared, load 12 on 2 cores")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        assert contention.describe() == words
