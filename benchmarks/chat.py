"""A chat from nothing on two cores: docs/chat-in-an-hour.md.

    python benchmarks/chat.py --data     writes the conversations and sums into out/chat, seconds
    python benchmarks/chat.py            and runs every command of the page, some eight minutes; prints its tables

What is finished in out/chat is not done again.

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
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from glassformer.formats import store
from glassformer.formats.data import find as find_corpus
from glassformer.formats.data.catalog import locate
from glassformer.runs import training_log
from glassformer.runs.report import draw
from glassformer.sight.figures.charts import Curves
from glassformer.tasks.encoded import Fit
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Rewarded

RUNS = Path(__file__).parents[1] / "runs"
OUT = Path("out") / "chat"
SECONDS = OUT / "seconds.json"
PARTS = ("learnt", "sums", "test")
DIALOGUES = ("dialogsum/dialogsum.dev.jsonl", "dialogsum/dialogsum.test.jsonl")
SPEAKER = re.compile(r"#Person([12])#: *(.*)")
HERO = re.compile(r"named ([A-Z][a-z]+)")
THINGS = re.findall(
    r"\w+",
    "ball bear bee bike bird boat book box bunny butterfly cake car cat cow crab dinosaur dog doll dragon duck "
    "elephant fairy fish flower fox frog garden horse kite lion mouse owl pig princess puppy rabbit robot "
    "squirrel train tree truck turtle wizard",
)
STORY = 800  # characters, so that a story and its question fit in 256 tokens
STORIES = 1200
LEARNT, TESTED = 0.25, 0.06  # shares of the pairs
REPEATS = 3  # of each sum among the conversations, whose answers are short
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
            matches = [turn for turn in turns if turn]
            if [turn[1] for turn in matches] == [
                *itertools.islice(itertools.cycle("12"), len(turns))
            ]:
                yield [turn[2] for turn in matches]


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
    splits = pairs[:learnt], pairs[learnt + tested :], pairs[learnt : learnt + tested]
    learnt_part, tried, test = (
        [f"{x}+{y}" for a, b in split for x, y in dict.fromkeys(((a, b), (b, a)))]
        for split in splits
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
    talks, short_stories = [*dialogues()], [*itertools.islice(stories(), STORIES)]
    text = "<|endoftext|>".join("\n".join(turns) for turns in talks)
    (OUT / "dialogues.txt").write_text(text, encoding="utf-8")
    learnt, *_ = sums()
    facts = [conversation(*pair) for pair in ABOUT.items()]
    added = [conversation(question, answer(question)) for question in learnt]
    records = [conversation(*turns[: len(turns) // 2 * 2]) for turns in talks]
    records += [conversation(*pair) for pair in short_stories] + 10 * facts + REPEATS * added
    random.Random(0).shuffle(records)
    put("talk.jsonl", records)
    for name, split in zip(PARTS, sums(), strict=True):
        put(f"{name}.jsonl", ({"prompt": q, "answer": answer(q)} for q in split))


# ---------------------------------------------------------------------------------------- the runs

TOKENIZER = (
    "tokens train tinystories out/chat/dialogues.txt --separator <|endoftext|> --size 4096 "
    "--special <|im_start|> --special <|im_end|> --out out/chat/tokenizer"
)
COMMANDS = {
    "tokenizer": TOKENIZER,
    "base": "train RUNS/chat.toml --out out/chat/base",
    "talk": "train RUNS/chat-talk.toml --out out/chat/talk",
    "sums": "train RUNS/chat-sums.toml --out out/chat/sums",
}


def make(name: str, steps: int | None) -> None:
    """Run the command of that name unless its folder is there; its seconds go to seconds.json."""
    if (OUT / name).exists():
        return
    words = COMMANDS[name].replace("RUNS", str(RUNS)).split()
    if steps and words[0] == "train":
        words += [f"--{setting}={steps}" for setting in ("steps", "evaluate_every", "save_every")]
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "glassformer", *words], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds[name] = {"wall": round(time.monotonic() - start), "processor": round(processor)}
    SECONDS.write_text(json.dumps(seconds, indent=1))


def accuracy(model: str, split: str) -> float:
    """The share of a part's sums whose likeliest answer is right."""
    loaded, tokenizer = store.load(str(OUT / model))
    objective = Rewarded(reward="exact", max_new=6)
    objective.prepare_tokenizer(tokenizer)
    table = read_examples(str(OUT / f"{split}.jsonl"), objective)
    objective.encode(table, tokenizer, Fit(table.name, 32, "no", "shorten it."))
    prompts = [*objective.prompts.values()]
    return float(objective.rollout(loaded.eval(), prompts, 32, False)[1].rewards.mean())


def curves(title: str, name: str, labels: dict[str, str]) -> Curves:
    """Columns of a run's log over its steps, the second with dots."""
    log = training_log(OUT / name)
    lines = {label: log.column(column) for column, label in labels.items()}
    return Curves(title, lines, dots=[*lines][1:])


def print_tables() -> None:
    """What each run took and came to, and the sums before and after the third."""
    seconds = json.loads(SECONDS.read_text())
    print(
        "| run | steps | tokens | by the clock | processor | loss held out |\n" + "|---" * 6 + "|"
    )
    for name in COMMANDS:
        cells = ["", "", ""]
        if (log := OUT / name / "log.jsonl").exists():
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            *_, last = (line["valid_loss"] for line in lines if "valid_loss" in line)
            tokens = sum(line["tokens"] for line in lines)
            cells = [f"{len(lines):,}", f"{tokens:,}", f"{last:.3f}"]
        times = (f"{seconds[name][clock] / 60:.1f} min" for clock in ("wall", "processor"))
        print(f"| {name} | {cells[0]} | {cells[1]} | {' | '.join(times)} | {cells[2]} |")
    charts = [
        curves("stories: loss", "base", {"loss": "training", "valid_loss": "held out"}),
        curves("talk: loss of the answers", "talk", {"loss": "training", "valid_loss": "held out"}),
        curves("sums: reward", "sums", {"reward": "drawn", "valid_reward": "likeliest, held out"}),
    ]
    print("\n" + draw(charts, OUT / "curves.png"))
    print("\n| sums | talk | sums |\n|---|---|---|")
    for split in PARTS:
        print(f"| {split} | {accuracy('talk', split):.1%} | {accuracy('sums', split):.1%} |")


def main() -> None:
    """Write the data, run, or print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", action="store_true", help="write the data alone")
    parser.add_argument("--steps", type=int, help="of each training, to try the commands")
    args = parser.parse_args()
    write_data()
    if args.data:
        return
    for name in COMMANDS:
        make(name, args.steps)
    print_tables()


if __name__ == "__main__":
    main()
