"""Exercises that check themselves, and the glossary.

    from glassformer.learn import catalogue, glossary

    for exercise in catalogue():             # Exercise: name, title, task, road, hints, starter, solution
        print(exercise.name, exercise.title)
    for term in glossary.terms():            # Term: name, sentence, formula, code, live, road, related
        print(term.name, term.live)          # a number of the shipped model

exercise   one Python file that is an exercise: task, hints, starter, solution; the catalogue in the order of the road
exercises/ ours
starting   the learner's file: a .py or a notebook with TODOs, and back from it to code
progress_file  what is done, a plain file in the learner's folder
checking   asks the worker for verdicts, of a file or of a class; needs no torch
worker     runs a learner's code in a process of its own, with limits
check_report  what a check says: equal or not, where, what to look at
real_model  the real model, and the places in it where a learner's part goes
glossary   the terms, from glossary.toml
"""

from ..core.files import lazily

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Exercise": ".exercise",
        "catalogue": ".exercise",
        "find": ".exercise",
        "Checker": ".checking",
        "Verdict": ".checking",
        "CheckReport": ".check_report",
    },
)
