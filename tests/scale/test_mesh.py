"""Ranks, axes and what processes tell each other."""

from __future__ import annotations

import itertools

import pytest
import torch

from glassformer.core.errors import UserError
from glassformer.runs.processes import rank0_logging
from glassformer.scale.mesh import ALONE, Mesh, share
from glassformer.scale.parallel import AXES, Parallel
from mistakes import mistake


def test_what_is_left_is_the_data_axis_and_what_does_not_multiply_is_refused():
    assert Parallel().of(4).data == 4
    assert Parallel(tensor=2).of(4).data == 2
    assert Parallel(data=1).of(1).rows == 1
    assert Parallel(replicate=2, expert=2).of(8).rows == 8
    with mistake("4 processes cannot be divided by tensor 3"):
        Parallel(tensor=3).of(4)
    with mistake(
        r"data 4 x context 2 is for 8, but there is 1 process; "
        r"start 8"
    ):
        Parallel(data=4, context=2).of(1)


def test_every_rank_has_one_place_and_neighbours_agree():
    layout = Parallel(data=2, replicate=2, context=3, tensor=2).of(24)
    meshes = [Mesh(layout, rank) for rank in range(24)]
    assert len({tuple(mesh.coordinate().values()) for mesh in meshes}) == 24
    assert [mesh.index(*AXES) for mesh in meshes] == list(range(24))
    assert {mesh.row for mesh in meshes} == set(range(4))
    for axes in itertools.chain.from_iterable(itertools.permutations(AXES, n) for n in (1, 2)):
        for mesh in meshes:
            near = mesh.neighbours(*axes)
            assert near[mesh.index(*axes)] == mesh.rank
            assert len(near) == mesh.extent(*axes)
            assert all(meshes[second].neighbours(*axes) == near for second in near)


def test_rows_are_shared_as_torch_cuts_them():
    for rows, pieces in itertools.product(range(1, 12), range(1, 6)):
        cut = [len(piece) for piece in torch.arange(rows).chunk(pieces)]
        cut += [0] * (pieces - len(cut))
        assert [
            high - low for low, high in (share(rows, pieces, index) for index in range(pieces))
        ] == cut


def test_alone_every_answer_is_ones_own():
    assert ALONE.alone
    assert ALONE.is_first
    assert ALONE.data_parallel_size == 1
    assert ALONE.group("data") is None
    assert ALONE.total([2.5]) == [2.5]
    assert ALONE.maximum(3) == 3
    assert ALONE.first("x") == "x"
    assert ALONE.gather_json(1) == [1]
    assert torch.equal(*ALONE.gather(torch.ones(2)), torch.ones(2))
    with mistake("mine"), ALONE.agreeing():
        raise UserError("mine")


def received(mesh):
    """Messages that a process receives from the other."""
    words = mesh.gather_bytes(b"x" * mesh.rank)
    results = [
        mesh.total([mesh.rank + 0.5, 1]),
        mesh.maximum(mesh.rank),
        mesh.first({"rank": mesh.rank}),
    ]
    results += [mesh.gather_json([mesh.rank]), [len(word) for word in words]]
    try:
        with mesh.agreeing():
            if mesh.rank == 1:
                raise UserError("the second's")
    except UserError as error:
        results.append(str(error))
    turns = []
    with mesh.rank0_first():
        turns.append(mesh.rank)
    pair = Mesh(Parallel(data=1, context=2), mesh.rank)
    assert pair.group("context").size() == 2
    assert pair.group("data") is None
    assert pair.row == 0
    return results


def test_two_processes_hear_the_same(two):
    item, second = two.call(received)
    assert item == second == [[2.0, 2], 1, {"rank": 0}, [[0], [1]], [0, 1], "the second's"]


def test_what_a_backend_says_of_a_lost_process_is_one_sentence_and_a_bug_is_not():
    mesh = Mesh(Parallel(data=2, timeout=7.0))
    with (
        mistake(r"lost or did not answer within 7 s .*--resume"),
        rank0_logging(mesh),
    ):
        raise RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: reset\nmore"
        )
    with pytest.raises(RuntimeError, match="mat1 and mat2"), rank0_logging(mesh):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
