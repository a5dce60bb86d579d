"""What processes hold and send, from the config."""

from __future__ import annotations

import subprocess
import sys

import tiny
from glassformer.config.parallel import Parallel
from glassformer.cost import cost
from glassformer.parallel.layout import Layout, pieces_for


def test_pieces_are_a_multiple_of_the_processes_that_share_rows():
    assert [pieces_for(n, Parallel(replicate=2).of(4)) for n in (1, 4, 5)] == [4, 4, 8]
    assert pieces_for(3, Parallel(tensor=4).of(4)) == 3


def test_a_shard_is_a_share_of_everything_and_one_process_receives_nothing():
    found = cost(tiny.DECODERS["llama"], 2)
    alone, four = (Layout(found, Parallel().of(n), 8, muon=True) for n in (1, 4))
    assert sum(alone.groups) == sum(four.groups) == found.total and len(alone.groups) == 3
    assert alone.memory == found.train() and alone.traffic == 0 < four.traffic
    assert four.to_dict()["parameters"] == -(-found.total // 4)
    copies = Layout(found, Parallel(data=1, replicate=4), 8)
    assert copies.traffic == 2 * 2 * found.total * 4  # two rounds, a sum there and back
    exact, plain = (Layout(found, Parallel(data=4, exact=e), 8, "bf16").traffic for e in (True, False))
    assert exact < plain  # gradients travel as they were computed


def test_cost_says_it_without_torch():
    code = "import sys; from glassformer.cli import main; main(['cost', 'runs/demo.toml', '--processes', '4'])"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode and "received a step and process, bf16" in done.stdout, done.stderr
