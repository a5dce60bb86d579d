"""An exercise is read from its file as text; what is no exercise is refused in a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from glassformer.learn.exercise import ROAD, catalogue, find, read_exercise, without_answers
from mistakes import SENTENCES, mistake

GOOD = '''"""A title.

What to do."""
ROAD = 3.5
HINTS = ("one", "two")
SECONDS = 7

# %% yours
def f(x):
    """What it is."""
    # TODO: say what
    # over two lines
    # or three
    y = 2 * x  # the answer
    return y
    # END


def g(x):
    # TODO: more
    return 1
    # END

# %% check
def check(theirs, report):
    pass
'''


def test_what_a_file_says(tmp_path):
    (tmp_path / "two_words.py").write_text(GOOD)
    item = read_exercise(tmp_path / "two_words.py")
    assert (item.name, item.title, item.task, item.road) == (
        "two-words",
        "A title",
        "What to do.",
        3.5,
    )
    assert (item.hints, item.seconds, item.file, item.page) == (
        ("one", "two"),
        7,
        "two_words.py",
        ROAD[2],
    )
    assert "y = 2 * x" in item.solution
    assert "check" not in item.solution
    assert item.starter == (
        'def f(x):\n    """What it is."""\n    # TODO: say what\n    # over two lines\n    # or '
        "three\n"
        "    raise NotImplementedError\n\n\ndef g(x):\n    # TODO: more\n    raise "
        "NotImplementedError\n"
    )


@pytest.mark.parametrize("old, new, message", SENTENCES["exercises"])
def test_what_is_no_exercise_is_refused(old, new, message, tmp_path):
    (tmp_path / "bad.py").write_text(GOOD.replace(old, new, 1))
    with mistake(None, message):
        catalogue(tmp_path)


def test_folders_that_hold_none(tmp_path):
    with mistake("is not a folder"):
        catalogue(tmp_path / "none")
    with mistake("holds no exercise"):
        catalogue(tmp_path)


def test_the_order_of_the_road_and_a_teachers_own(tmp_path):
    actual = catalogue()
    assert [item.road for item in actual] == sorted({item.road for item in actual})
    assert all(item.page for item in actual)
    assert all(len(item.hints) >= 2 and item.task and item.title for item in actual)
    (tmp_path / "rotary.py").write_text(GOOD)
    assert len(catalogue(tmp_path)) == len(actual)
    assert find("rotary", tmp_path).title == "A title"


@pytest.mark.parametrize("name", ["causal-mask", "causal_mask", "Causal mask", "causal_mask.py"])
def test_a_name_is_found_as_people_write_it(name):
    assert find(name).name == "causal-mask"


def test_an_unknown_name_gets_the_nearest():
    with mistake(r'no exercise "casual-mask".* Did you mean "causal-mask"'):
        find("casual-mask")


def test_no_answer_is_left_in_a_starter():
    for item in catalogue():
        lines = item.starter.splitlines()
        assert [line for line in item.solution.splitlines() if line not in lines]
        assert lines.count("") >= 1
        assert item.starter.count("raise NotImplementedError") >= 1
        assert item.starter == without_answers(item.solution)
        assert "# END" not in item.starter


def test_exercises_are_listed_without_torch():
    code = (
        "import sys; from glassformer.cli import main; assert not main(['learn']); assert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
