"""A pool of processes that stay up and are one another's neighbours, for tests of ``scale/``.

``Processes(2).call(function, name=value)`` runs a function of a test file, ``function(mesh,
name=value)``, on each of them and gives their answers in the order of ranks. Arguments and answers
are JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path


def free_port():
    """A port that nobody listens on now."""
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        return int(item.getsockname()[1])


def environment(rank, size, port, **more):
    """Environment variables that torchrun would set for a process."""
    message = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {
        **os.environ,
        **{name: str(value) for name, value in message.items()},
        "OMP_NUM_THREADS": "1",
        **more,
    }


class Processes:
    """So many processes with a mesh over all of them."""

    def __init__(self, size):
        port, self.started = free_port(), list[subprocess.Popen[str]]()
        for rank in range(size):
            fields = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            words = [sys.executable, __file__]
            self.started.append(
                subprocess.Popen(words, env=environment(rank, size, port), **fields)
            )

    def call(self, function, **kwargs):
        """The answers; the first error of any process is raised."""
        line = json.dumps([inspect.getsourcefile(function), function.__name__, kwargs])
        for process in self.started:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        answers = [
            json.loads(process.stdout.readline() or '{"error": "it ended"}')
            for process in self.started
        ]
        wrong = [
            f"rank {rank}: {answer['error']}"
            for rank, answer in enumerate(answers)
            if "error" in answer
        ]
        assert not wrong, "\n".join(wrong)
        return [answer["value"] for answer in answers]

    def close(self):
        """End them."""
        for process in self.started:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.started:
            process.wait(30)


def _module(path):
    name = f"pool_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def main():
    """One process of the pool: a line of JSON in, a line of JSON out."""
    import torch

    from glassformer.scale.mesh import started
    from glassformer.scale.parallel import Parallel

    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    with started(Parallel(timeout=120.0), "cpu") as mesh:
        for line in sys.stdin:
            path, name, args = json.loads(line)
            try:
                answer = {"value": getattr(_module(path), name)(mesh, **args)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
