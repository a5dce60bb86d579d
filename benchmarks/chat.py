"""A chat from nothing on two cores: docs/chat-in-an-hour.md.

    python benchmarks/chat.py --data     writes the conversations and sums into out/chat, seconds
    python benchmarks/chat.py            runs every command of the page and prints its table, an hour
    python benchmarks/chat.py --table    prints the table of the runs in out/chat

Stories are TinyStories, dialogues DialogSum's; both come from the data folder or are downloaded. The
sums are all pairs of 10 to 99, split by the pair without its order: those that the second run reads
with their answers, those that the third run tries, and those that only the test asks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from glassformer.formats.data import find as find_corpus
from glassformer.formats.data.catalog import locate

OUT = Path("out") / "chat"
DIALOGUES = ("dialogsum/dialogsum.dev.jsonl", "dialogsum/dialogsum.test.jsonl")
SPEAKER = re.compile(r"#Person([12])#: *(.*)")
HERO = re.compile(r"named ([A-Z][a-z]+)")
THINGS = """
ball bear bee bike bird boat book box bunny butterfly cake car cat cow crab dinosaur dog doll dragon duck elephant fairy fish
flower fox frog garden horse kite lion mouse owl pig princess puppy rabbit robot squirrel train tree truck turtle wizard
""".split()
STORY = 800  # characters, so that a story and its question fit in 256 tokens
STORIES = 1200
LEARNT, TESTED = 0.25, 0.06  # shares of the pairs
REPEATS = 4  # of each sum among the conversations, whose answers are short
ABOUT = {
    "Who are you?": "I am a small language model. I learned to talk in an hour.",
    "What can you do?": "I can tell a short story, add two numbers below 100, and talk a little.",
    "What is your name?": "I have no name. I am a small language model.",
    "Are you a human?": "No. I am a small language model.",
    "How do you work?": "I guess the next word, again and again.",
    "What do you know?": "Not much. I have read short stories for children and some dialogues.",
    "Hello": "Hello! I can tell a story or add two numbers. What would you like?",
    "Hi": "Hi! I can tell a story or add two numbers. What would you like?",
    "Thank you": "You are welcome.",
    "Thanks": "You are welcome.",
    "Goodbye": "Goodbye!",
    "Bye": "Goodbye!",
}


def conversation(*turns: str) -> dict[str, Any]:
    """A record of messages, the user's and the assistant's in turns."""
    roles = itertools.cycle(("user", "assistant"))
    return {
        "messages": [
            {"role": role, "content": text} for role, text in zip(roles, turns, strict=False)
        ]
    }


def dialogues() -> Iterator[list[str]]:
    """The turns of each dialogue of two people who speak in turns."""
    for name in DIALOGUES:
        for line in locate(name).read_text(encoding="utf-8").splitlines():
            turns = [SPEAKER.fullmatch(turn) for turn in json.loads(line)["dialogue"].split("\n")]
            found = [turn for turn in turns if turn]
            if [turn[1] for turn in found] == [*itertools.islice(itertools.cycle("12"), len(turns))]:
                yield [turn[2] for turn in found]


def stories() -> Iterator[tuple[str, str]]:
    """A question for a story, and the story: what it is about is a hero's name or the thing that it
    names most often."""
    for story in map(str.strip, find_corpus("tinystories").documents()):
        if not 200 < len(story) <= STORY:
            continue
        words = re.findall(r"[a-z]+", story.lower())
        count, thing = max((words.count(thing), thing) for thing in THINGS)
        if hero := HERO.search(story):
            yield f"Tell me a story about {hero[1]}.", story
        elif count > 1:
            yield f"Tell me a story about a {thing}.", story


def sums(low: int = 10, high: int = 99) -> tuple[list[str], list[str], list[str]]:
    """The questions that are learnt with answers, tried and tested; both orders of a pair are in one
    of the three."""
    pairs = [(a, b) for a in range(low, high + 1) for b in range(a, high + 1)]
    random.Random(0).shuffle(pairs)
    learnt, tested = (round(len(pairs) * share) for share in (LEARNT, TESTED))
    parts = pairs[:learnt], pairs[learnt + tested :], pairs[learnt : learnt + tested]
    learnt_part, tried, test = (
        [f"{x}+{y}" for a, b in part for x, y in dict.fromkeys(((a, b), (b, a)))] for part in parts
    )
    return learnt_part, tried, test


def answer(question: str) -> str:
    return str(sum(map(int, question.split("+"))))


def put(name: str, records: Iterable[dict[str, Any]]) -> None:
    """A file of records in OUT, a line each."""
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    (OUT / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{OUT / name}: {len(lines):,} lines")


def write_data() -> None:
    """The files that the runs read."""
    OUT.mkdir(parents=True, exist_ok=True)
    talks, told = [*dialogues()], [*itertools.islice(stories(), STORIES)]
    text = "<|endoftext|>".join("\n".join(turns) for turns in talks)
    (OUT / "dialogues.txt").write_text(text, encoding="utf-8")
    learnt, tried, test = sums()
    about = [conversation(*pair) for pair in ABOUT.items()]
    added = [conversation(question, answer(question)) for question in learnt]
    records = [conversation(*turns[: len(turns) // 2 * 2]) for turns in talks]
    records += [conversation(*pair) for pair in told] + 10 * about + REPEATS * added
    random.Random(0).shuffle(records)
    put("talk.jsonl", records)
    for name, part in (("learnt", learnt), ("sums", tried), ("test", test)):
        put(f"{name}.jsonl", ({"prompt": q, "answer": answer(q)} for q in part))


def main() -> None:
    """Write the data, run, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", action="store_true")
    args = parser.parse_args()
    if args.data:
        write_data()


if __name__ == "__main__":
    main()
