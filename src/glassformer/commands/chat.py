"""``glassformer chat``: a conversation in the terminal, by the model's own chat template."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..core.errors import UserError, nearest, need, note
from .common import count_noun
from .options import ModelOptions
from .parsing import Count

if TYPE_CHECKING:
    from ..core.generation import Sampling
    from ..formats.chat_template import ChatTemplate
    from ..serve.engine import Engine

EXAMPLES = (
    "glassformer chat Qwen/Qwen3-0.6B",
    'glassformer chat out/chat --system "Answer in one sentence." --temperature 0',
    "glassformer chat out/chat --seed 1",
)


def run(
    options: ModelOptions,
    *,
    system: str | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: Count | None = None,
    seed: int | None = None,
    bits: Literal[4, 8] | None = None,
    chat_template: Path | None = None,
) -> None:
    """Talks with a model in the terminal, by its own chat template.

    system TEXT: the system prompt (none)
    temperature T: 0 takes the likeliest token (the model's generation_config.json, else 1)
    top_p P: draw from the likeliest tokens with mass P (the same file's, else all)
    max_tokens N: at most N tokens an answer (to the end of the context)
    seed S: the same seed gives the same answers
    bits B: quantize the weights while loading: 8 or 4 bits
    chat_template F: a Jinja file in place of the model's chat template
    """
    need(sys.stdin is not None, "There is no standard input; give a line a turn.")
    from ..core.generation import Sampling
    from ..formats.checkpoint import Checkpoint
    from ..formats.generation_config import saved_sampling
    from ..serve.engine import Engine

    folder = Checkpoint.open(options.model).folder
    typed = {"temperature": temperature, "top_p": top_p}
    words = {name: value for name, value in typed.items() if value is not None}
    sampling = Sampling(**{**saved_sampling(folder), **words})  # type: ignore[arg-type]
    model, tokenizer = options.load_with_tokenizer(bits=bits)
    template = open_template(options.model, tokenizer, chat_template)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        note(f"{options.model}: /help lists the commands, Ctrl-D ends.")
    with Engine(model, tokenizer, max_sequences=1) as engine:
        talk = Talk(engine, template, sampling, max_tokens, seed, system)
        for line in read_lines():
            try:
                talk.take(line)
            except KeyboardInterrupt:
                note("")
            except EOFError:
                return
            except UserError as error:
                if not is_terminal:
                    raise
                note(str(error))


def open_template(name: str, tokenizer: Any, path: Path | None) -> ChatTemplate:
    """The chat template of a file, or the tokenizer's; UserError for a base model."""
    from ..formats.chat_template import ChatTemplate

    if path is not None:
        return ChatTemplate.open(path, tokenizer)
    need(
        tokenizer.chat_template is not None,
        f"{name} is a base model: it has no chat template, so it continues texts by glassformer "
        "generate; train it on conversations (docs/chat.md), or give --chat-template FILE.",
    )
    return ChatTemplate(tokenizer.chat_template, tokenizer)


def read_lines() -> Iterator[str]:
    """Yields what is typed, a line a turn, until the input ends."""
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        prompt = "> "
        with suppress(ImportError):
            import readline  # noqa: F401
    while True:
        try:
            line = input(prompt)
            line.encode()
            yield line
        except EOFError:
            return
        except KeyboardInterrupt:
            note("\nCtrl-D or /quit ends.")
        except UnicodeError:
            note("That line is not UTF-8 text; write it again.")


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


class Talk:
    """A conversation with a model. The engine keeps what it has read in pages, so that a turn reads
    what is new."""

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        sampling: Sampling,
        max_new: int | None = None,
        seed: int | None = None,
        system: str | None = None,
    ) -> None:
        self.engine, self.template, self.sampling = engine, template, sampling
        self.max_new, self.seed = max_new, seed
        self.system_prompt = system or ""
        self.turns = list[dict[str, str]]()  # messages and answers by turns
        self.ids = list[int]()  # that the last answer's pass read, with its tokens
        self.attempt = 0  # of the last turn, whose answers differ
        assert engine.tokenizer is not None
        self.ends = [*engine.tokenizer.end_ids, *template.closing()]

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as a template reads it."""
        return [
            *([message("system", self.system_prompt)] if self.system_prompt else []),
            *self.turns,
        ]

    def take(self, line: str) -> None:
        """Answers a line, or obeys its command. Raises EOFError where it ends the chat."""
        if not line.startswith("/"):
            self.attempt = 0
            if line.strip():
                self.ask(line.strip())
            return
        name, _, words = line[1:].partition(" ")
        hint = nearest(name, COMMANDS) or " /help lists them."
        sentence = f"There is no command /{name}; a space in front makes it a text.{hint}"
        need(name in COMMANDS, sentence)
        COMMANDS[name](self, words.strip())

    def ask(self, text: str) -> None:
        """Prints an answer as it is written, and keeps it; Ctrl-C stops it there. The chat stays as
        it was where there is none."""
        from ..serve.engine import Request

        ids = self.template.tokens([*self.messages, message("user", text)])
        context = self.engine.max_context
        need(
            len(ids) <= context,
            f"The chat would have {len(ids):,} tokens and the context is {context:,}, so the message "
            "is not sent; the chat stays as it was: /save FILE keeps it, /clear begins anew.",
        )
        seed = int.from_bytes(os.urandom(4)) >> 1 if self.seed is None else self.seed
        request = self.engine.submit(
            Request(
                ids,
                sampling=self.sampling,
                max_new=self.max_new,
                seed=seed,
                first=self.attempt,
                stop_tokens=self.ends,
            )
        )
        answer, tokens, finish = "", list[int](), None
        try:
            for event in request:
                if event.error is not None:
                    raise event.error
                answer, finish = answer + event.text, event.finish_reason
                tokens += () if event.token is None else (event.token,)
                print(event.text, end="", flush=True)
        except KeyboardInterrupt:
            request.cancel()
        print(flush=True)
        if finish not in (None, "stop"):
            limit = "--max-tokens" if len(tokens) == self.max_new else "the context"
            note(f"The answer ends at {limit} after {count_noun(len(tokens), 'token')}.")
        if not answer.strip():
            note("There is no answer, so the chat stays as it was; write the message again.")
            return
        self.turns += message("user", text), message("assistant", answer)
        self.ids = [*ids, *tokens]

    def system(self, text: str) -> None:
        """Sets the system prompt to the TEXT behind it, or shows it."""
        if text:
            self.system_prompt = text
        else:
            print(self.system_prompt or "There is no system prompt.")

    def regenerate(self, _: str) -> None:
        """Answers the last message anew."""
        need(bool(self.turns), "There is no answer yet; write a message.")
        turns = self.turns
        self.turns = turns[:-2]
        self.attempt += 1
        try:
            self.ask(turns[-2]["content"])
        finally:
            if len(self.turns) < len(turns):
                self.turns = turns

    def save(self, name: str) -> None:
        """Adds the chat to the JSONL file FILE, as a line that the objective Chat trains on."""
        from ..core.files import explain

        need(bool(name), "Name the file, as in /save chats.jsonl.")
        need(bool(self.turns), "There is no answer yet; write a message.")
        path = Path(name).expanduser()
        try:
            is_cut = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
            with path.open("a", encoding="utf-8") as file:
                record = json.dumps({"messages": self.messages}, ensure_ascii=False)
                file.write(f"\n{record}\n" if is_cut else f"{record}\n")
        except OSError as error:
            raise explain(error, path) from None
        print(f"{count_noun(len(self.turns) // 2, 'answer')} in {path}")

    def why(self, address: str) -> None:
        """Opens the logit of the last token to what it was computed from, or the number at
        ADDRESS."""
        from ..sight.recording.trace import trace

        need(bool(self.ids), "There is no answer yet; write a message.")
        *ids, last = self.ids
        tape = trace(self.engine.model, self.engine.tokenizer, ids)
        for step in tape.why(address or f"logits[{len(ids) - 1},{last}]", 0):
            print("\n".join(step.lines(8)))

    def clear(self, _: str) -> None:
        """Begins a new chat with the same system prompt."""
        self.turns, self.ids, self.attempt = [], [], 0

    def help(self, _: str) -> None:
        """Lists the commands."""
        for name, command in COMMANDS.items():
            print(f"/{name:12}{' '.join((command.__doc__ or '').split())}")
        print("Ctrl-C stops an answer and keeps the chat, Ctrl-D ends.")

    def quit(self, _: str) -> None:
        """Ends the chat."""
        raise EOFError


NAMES = ("system", "regenerate", "save", "why", "clear", "help", "quit")
COMMANDS: dict[str, Callable[[Talk, str], None]] = {name: getattr(Talk, name) for name in NAMES}
