"""A class's points, as gradebooks read them."""

from __future__ import annotations

import csv
import io

import pytest

from glassformer.learn.checking import Verdict
from glassformer.learn.grades import LAYOUTS, grades_file, learner_points

POINTS = {"one-head": 10.0, "top-p": 5.0}
VERDICTS = [
    ("bo", Verdict("one-head", "bo/a.py", "failed")),
    ("bo", Verdict("one-head", "bo/b.py", "passed")),
    ("ada", Verdict("top-p", "ada/a.py", "todo")),
    ("ada", Verdict("", "ada/x.py", "refused")),
    ("=cmd()", Verdict("top-p", "c.py", "passed")),
]


def rows(layout):
    table = learner_points(VERDICTS, POINTS)
    return list(csv.reader(io.StringIO(grades_file(table, POINTS, layout))))


def test_one_file_that_passes_has_the_points():
    assert learner_points(VERDICTS, POINTS) == {
        "=cmd()": {"top-p": 5.0},
        "ada": {"top-p": 0.0},
        "bo": {"one-head": 10.0},
    }


def test_the_plain_table():
    assert rows("csv") == [
        ["learner", "one-head", "top-p", "total"],
        ["(possible)", "10", "5", "15"],
        ["'=cmd()", "", "5", "5"],
        ["ada", "", "0", "0"],
        ["bo", "10", "", "10"],
    ]


def test_canvas_reads_five_columns_and_the_possible_points():
    heading, possible, *learners = rows("canvas")
    assert heading == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *POINTS]
    assert possible == ["    Points Possible", "", "", "", "", "10", "5"]
    assert learners[2] == ["bo", "", "", "bo", "", "10", ""]


def test_nbgraders_columns():
    table = list(
        csv.DictReader(
            io.StringIO(grades_file(learner_points(VERDICTS, POINTS), POINTS, "nbgrader"))
        )
    )
    assert len(table) == 6
    score = {(row["student_id"], row["assignment"]): row["score"] for row in table}
    assert score["bo", "one-head"] == "10" and score["bo", "top-p"] == "0"
    assert {row["max_score"] for row in table if row["assignment"] == "top-p"} == {"5"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_a_rectangle(layout):
    assert len(set(map(len, rows(layout)))) == 1
