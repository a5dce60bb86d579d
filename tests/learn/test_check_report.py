"""What differs is said with the first place that differs; what is the same in another form
passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from glassformer.learn.check_report import CheckReport, Wrong, difference

X = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize(
    "reference, actual",
    [
        (X.tolist(), X),
        (X.double(), X),
        (X.numpy(), X),
        (X.clone().requires_grad_(), X),
        (X + 1e-6, X),
        (torch.tensor(2.0), 2.0),
        (np.float32(2), 2.0),
        ((1, 2), [1, 2]),
        (torch.tensor([1, 2]), [1, 2]),
        ("a", "a"),
        ([float("nan")], torch.tensor([float("nan")])),
        ([("a", "b")], [("a", "b")]),
        ([["a", "b"]], [("a", "b")]),
    ],
)
def test_the_same_in_another_form(reference, actual):
    assert difference("y", reference, actual) == ""


@pytest.mark.parametrize(
    "reference, actual, message",
    [
        (X + torch.eye(2, 3) * 0.5, X, "y[0, 0] is 0.5 and should be 0. 2 of 6 numbers differ."),
        (X.T, X, "y has the shape (3, 2) and should have (2, 3)."),
        (X * torch.nan, X, "y[0, 0] is nan and should be 0. 6 of 6 numbers differ."),
        (X > 2, X > 3, "y[1, 0] is True and should be False. 1 of 6 numbers differ."),
        (X, X > 3, "y holds torch.float32; booleans are asked for (torch.bool)."),
        (None, X, "y is None; does every way through your function end in return?"),
        ("text", X, "y is 'text', a str; a tensor (2, 3) is asked for."),
        (2.5, 2.0, "y is 2.5 and should be 2."),
        ([1, 3], [1, 2], "y[1] is 3 and should be 2."),
        ([1], [1, 2], "y: 1 of them, and there should be 2."),
        (7, [1, 2], "y is 7, a int; a list of 2 is asked for."),
        (["a", "x"], ["a", "b"], "y[1] is 'x' and should be 'b'."),
        ("ab", "ac", "y is 'ab' and should be 'ac'."),
        (X.to(torch.complex64), X, "y holds complex numbers; real ones are asked for."),
    ],
)
def test_what_differs_is_said(reference, actual, message):
    assert difference("y", reference, actual) == message


def test_a_slip_is_recognised_by_its_numbers():
    report = CheckReport(0)
    slips = {"twice": lambda: X * 2, "half": X / 2}
    for reference, look in ((X * 2, "twice"), (X / 2, "half"), (X + 1, "all")):
        with pytest.raises(Wrong) as wrong:
            report.equal("y", reference, X, slips=slips, look="all")
        assert wrong.value.look == look
    report.equal("y", X, X, slips=slips)
    with pytest.raises(Wrong, match="no"):
        report.true(False, "no")


def test_nothing_that_a_learner_seeds_makes_the_inputs_known():
    torch.manual_seed(0)
    report = CheckReport(1)
    second = CheckReport(2)
    again = CheckReport(1)
    first = report.randn(3)
    torch.manual_seed(0)
    assert difference("y", first, second.randn(3))
    assert not difference("y", first, again.randn(3))
    assert report.rand(4).max() < 1
    assert set(report.randint(0, 2, (50,)).tolist()) == {0, 1}
    assert report.random.random() == again.random.random()
    report.say("good")
    assert report.good == ["good"]


def test_a_part_that_changes_what_is_computed_and_a_result_that_is_no_pair_are_said():
    report = CheckReport(0)
    values = [1.0]
    with report.same("the sum", lambda: sum(values)) as before:
        values[:] = [0.5, 0.5]
    assert before == 1.0
    with (
        pytest.raises(Wrong, match=r"the sum is 2 and should be 1\."),
        report.same("the sum", lambda: sum(values)),
    ):
        values.append(1.0)
    report.pair((1, 2), "two things")
    for result in (1, [1, 2], (1, 2, 3)):
        with pytest.raises(Wrong, match="two things"):
            report.pair(result, "two things")
