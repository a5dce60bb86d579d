"""A chat in the terminal: what is kept, undone, saved and explained; the tokens of a fresh pass."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest

import glassformer
import tiny
from folders import write_json
from glassformer.core.nn import build_model
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats import store
from glassformer.formats.chat_template import CHATML, ChatTemplate
from glassformer.formats.generation_config import saved_sampling
from glassformer.tasks.objectives import Chat
from mistakes import mistake

TEXTS = ["the cat sat on the mat and the dog sat on the log a b c d user assistant system"] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random model with a template, whose answers never end by themselves."""
    path = tmp_path_factory.mktemp("chat") / "model"
    tokenizer = train_tokenizer("bpe", TEXTS, 300, Chat.specials)
    embed = dataclasses.replace(tiny.DECODERS["llama"].embed, vocab=tokenizer.size)
    cfg = dataclasses.replace(tiny.DECODERS["llama"], embed=embed, context=400)
    tokenizer.chat_template = CHATML
    store.save(build_model(cfg, seed=2), path, tokenizer)
    return path


def chat(terminal, folder, lines, more="", **options):
    text = "".join(f"{line}\n" for line in lines)
    return terminal(f"chat {folder} {more}", stdin=text.encode(), **options)


def saved(path):
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def test_the_tokens_are_those_of_a_fresh_pass(folder, terminal, tmp_path):
    """Every turn, with the same seed, and only whole pages are read again."""
    lines = ["the cat", "the dog sat", f"/save {tmp_path / 'a.jsonl'}", "/regenerate", "on"]
    lines += [f"/save {tmp_path / 'a.jsonl'}"]
    chat(terminal, folder, lines, "--system mat --seed 3 --max-tokens 40")
    model, tokenizer = glassformer.load(folder)
    template = ChatTemplate(CHATML, tokenizer)
    first, second = saved(tmp_path / "a.jsonl")
    assert first[0] == {"role": "system", "content": "mat"} == second[0]
    assert first[:4] == second[:4] and first[4] != second[4]
    for messages, sample in ((first, 0), (second[:5], 1), (second, 0)):
        for at in range(2, len(messages), 2):
            number = sample if at == len(messages) - 1 else 0
            if messages is second and at == 4:
                number = 1
            fresh = glassformer.generate(
                model,
                tokenizer,
                template.tokens(messages[:at]),
                max_new=40,
                seed=3,
                samples=2,
                eos=[*tokenizer.end_ids, *template.closing()],
            ).run()
            assert messages[at]["content"] == fresh.texts[number]
    from glassformer.commands.chat import Talk
    from glassformer.core.generation import Sampling
    from glassformer.serve.engine import Engine

    with Engine(model, tokenizer, max_sequences=1) as engine:
        talk = Talk(engine, template, Sampling(0), 4)
        common_length = 0
        for _ in range(3):
            before, ids = engine.stats().cached_tokens, talk.ids
            talk.ask("z y x w " * 8)
            # an answer whose text is made of other tokens is read again
            pairs = itertools.zip_longest(ids, talk.ids)
            common_length = next(at for at, (first, second) in enumerate(pairs) if first != second)
            assert engine.stats().cached_tokens - before == common_length // 32 * 32
        assert common_length > 128


def test_a_saved_chat_is_trained_on(folder, terminal, tmp_path):
    path = tmp_path / "it.jsonl"
    path.write_text('{"messages": []}')  # without an end of the line
    words = [f"/save {path}", "/save"]
    chat(terminal, folder, ["the cat", words[0]], "--temperature 0 --max-tokens 3")
    lines = path.read_text().splitlines()
    path.write_text(lines[1] + "\n")
    assert len(lines) == 2
    assert "<|im_end|>" in terminal("data", path, "--with", folder, "--show", 1)
    assert "Name the file" in chat(terminal, folder, ["a", "/save"], code=2) or terminal.notes


def test_an_empty_template_is_refused(folder, terminal, tmp_path):
    path = tmp_path / "empty.jinja"
    path.write_text("\n")
    refused = terminal.refused("chat", folder, "--chat-template", path)
    assert f"{path} is empty; give another chat template." in refused


def test_commands(folder, terminal):
    lines = [
        "/system",
        "/system the log",
        "/system",
        "/help",
        "the cat",
        "/why",
        "/why logits[1,5]",
    ]
    output = chat(terminal, folder, [*lines, "/quit", "never"], "--max-tokens 4 --temperature 0")
    assert output.startswith("There is no system prompt.\nthe log\n/system ")
    assert re.search(r"logits\[\d+,\d+\]", output) and "logits[1,5]" in output
    assert "after 4 tokens" in terminal.notes and "/regenerate  Answers" in output
    for line, sentence in {
        "/regenerat": 'mean "regenerate"',
        "/regenerate": "no answer yet",
        "/why": "no answer yet",
        "/save x": "no answer yet",
    }.items():
        chat(terminal, folder, [line], code=2)
        assert sentence in terminal.notes
    chat(terminal, folder, ["a", "/clear", "/regenerate"], "--max-tokens 2", code=2)
    assert "no answer yet" in terminal.notes


def test_a_chat_beyond_the_context_stays_as_it_was(folder, terminal, tmp_path):
    long = "q" * 500
    lines = ["the cat", long, f"/save {tmp_path / 'a.jsonl'}"]
    chat(terminal, folder, lines, "--max-tokens 4 --temperature 0", code=2)
    assert re.search(r"would have \d+ tokens and the context is 400", terminal.notes)
    full = chat(terminal, folder, ["q" * 370], "--temperature 0")
    assert "the context" in terminal.notes and full


def test_a_base_model_is_refused(terminal):
    assert "tiny is a base model" in terminal.refused("chat tiny")


def test_settings_come_from_the_folder(folder, tmp_path):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    assert saved_sampling(tmp_path) == {"temperature": 0.6, "top_p": None, "top_k": 20}
    assert saved_sampling(folder)["temperature"] == 1.0


@pytest.mark.parametrize(
    ("saved_settings", "expected"),
    [
        ({"temperature": None, "top_k": 0, "top_p": 0.9}, (1.0, 0.9, None)),
        ({"do_sample": False, "temperature": 0.7}, (0.0, None, None)),
        ({}, (1.0, None, None)),
    ],
)
def test_settings_are_read_as_transformers_reads_them(saved_settings, expected, tmp_path):
    write_json(tmp_path / "generation_config.json", saved_settings)
    assert tuple(saved_sampling(tmp_path).values()) == expected


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
@pytest.mark.parametrize("value", ["x", True, [1]])
def test_a_setting_that_is_no_number_is_refused(name, value, tmp_path):
    write_json(tmp_path / "generation_config.json", {name: value})
    with mistake(f'generation_config.json: "{name}" is .*, which is no number'):
        saved_sampling(tmp_path)


class Pseudo:
    """The command in a pseudo-terminal."""

    def __init__(self, *words):
        pty = pytest.importorskip("pty")
        self.main, terminal_end = pty.openpty()
        command = [sys.executable, "-m", "glassformer", "chat", *map(str, words)]
        env = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command,
            stdin=terminal_end,
            stdout=terminal_end,
            stderr=terminal_end,
            env=env,
            start_new_session=True,
        )
        os.close(terminal_end)
        self.text = ""

    def until(self, pattern, seconds=120, interrupting=False):
        """Reads until the pattern appears, and forgets what came before its end. A signal just
        before readline waits is seen with the next one, so it may be sent again."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < end, self.text
            if interrupting:
                self.interrupt()
            if select.select([self.main], [], [], 1)[0]:
                self.text += os.read(self.main, 4096).decode("utf-8", "replace")
        before, self.text = self.text[: match.end()], self.text[match.end() :]
        return before

    def type(self, text):
        os.write(self.main, text.encode())

    def interrupt(self):
        os.kill(self.process.pid, signal.SIGINT)


def test_ctrl_c_stops_an_answer_and_keeps_the_chat(folder, tmp_path):
    screen = Pseudo(folder, "--seed", 1)
    screen.until("Ctrl-D ends.*> ".replace(".*", r"[\s\S]*"))
    screen.until("/quit ends", interrupting=True)
    screen.type("the cat sat\n")
    # Neither readline's codes nor the line that it shows again are the answer.
    screen.until(r"sat\r\n(?:\x1b\[[?0-9;]*[a-zA-Z]|\s)*[^\x1b\s>]")
    screen.interrupt()
    screen.until("> ")
    # On a busy machine the signal comes after the answer's end and takes the line that is typed.
    typed = "/quit ends"
    while "/quit ends" in typed:
        screen.type(f"/save {tmp_path / 'a.jsonl'}\n")
        typed = screen.until(r"1 answer in|/quit ends[\s\S]*> ")
    (messages,) = saved(tmp_path / "a.jsonl")
    assert messages[0]["content"] == "the cat sat" and messages[1]["content"]
    screen.type("/nothing\n")
    screen.until("no command /nothing")
    screen.until("> ")
    screen.type("\x04")
    assert screen.process.wait(60) == 0
    os.close(screen.main)
