"""Registry of served models: each with its tokenizer, engine and chat template.

Texts become ids in threads, so that a long one blocks no other request; what cannot fit is refused
first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import to_thread

from ..core import config
from ..core.errors import need
from ..core.tokenizer.framing import document_start
from ..formats import chat_template
from ..formats.chat_template import ChatTemplate
from ..formats.checkpoint import Checkpoint
from ..formats.resolve import GGUF, is_recipe
from ..tasks.predictions import tags
from .asgi.limits import LONGEST_NAME, MOST_CHARACTERS, MOST_TEXTS
from .asgi.replies import HttpError, refuse
from .engine import Engine
from .engine.sequence import first_outside
from .page.models import InMemoryEntry, Models, unique_id
from .schemas import Message


@dataclass(frozen=True)
class EngineLimits:
    """Engine limits set by the operator for every model; None is the engine's default."""

    max_context: int | None = None
    max_sequences: int = 32
    max_queue: int = 256
    memory: int | None = None


class ServedModel(InMemoryEntry):
    """Served model with its engine, tokenizer and chat template."""

    def __init__(
        self,
        id: str,
        checkpoint: Checkpoint,
        model: Any,
        bounds: EngineLimits,
        template: Path | None,
    ) -> None:
        tokenizer = checkpoint.tokenizer()
        need(
            tokenizer is not None,
            f"{checkpoint.name} has no tokenizer, so it cannot be asked in words; serve another.",
        )
        assert tokenizer is not None
        super().__init__(id, checkpoint, model, tokenizer)
        self.created = int(time.time())
        self.config: config.Model = model.config
        self.starts_with_bos = document_start(tokenizer) is not None
        folder = checkpoint.folder
        source = None if folder is None else chat_template.find(folder)
        if template is not None:
            self.template: ChatTemplate | None = ChatTemplate.open(template, tokenizer)
        else:
            self.template = None if source is None else ChatTemplate(source, tokenizer)
        longest = max(len(tokenizer.bytes_of(id)) for id in range(tokenizer.size))
        self.engine = Engine(model, tokenizer, **vars(bounds))
        self.context = self.engine.max_context
        # a longer text cannot fit, however it is cut
        self.characters = self.context * max(longest, 1)
        cfg = self.config
        has_head = cfg.head is not None
        continues = isinstance(cfg, config.Decoder) and has_head
        translates = cfg.has_source
        # classes of a text (one: a number), and of its tokens
        labelled, tagged = cfg.pool is not None and bool(cfg.pool.labels), tags(cfg)
        embeds = not translates and not labelled
        masks = isinstance(cfg, config.Encoder) and tokenizer.mask is not None
        abilities = {
            "completions": continues,
            "chat": continues and self.template is not None,
            "embeddings": embeds,
            "score": embeds or labelled,
            "classify": labelled,
            "tag": tagged,
            "fill": masks and has_head,
            "translate": translates,
        }
        self.abilities = [name for name, able in abilities.items() if able]  # its endpoints
        label_head: Any = cfg.token_head if tagged else cfg.pool
        count = label_head.labels if label_head else 0
        self.labels = list(checkpoint.labels) or list(map(str, range(count)))

    def check_lengths(self, texts: Sequence[object], param: str) -> None:
        """Raises HttpError 400 for texts that cannot fit, by their characters alone."""
        check_count(texts, param)
        longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
        message = (
            f"A text of {longest} characters cannot fit in the context of {self.context} tokens; "
            "shorten it."
        )
        refuse(longest > self.characters, message, param, "context_length_exceeded")

    def check_context(self, row: Sequence[int], new: int, param: str) -> None:
        """Raises HttpError 400 where a prompt with ``new`` tokens after it is longer than the context.

        The last token that is generated is never read, so it may lie just outside.
        """
        if len(row) + max(new - 1, 0) > self.context:
            requested = f" and {new} more are asked for" if new else ""
            message = (
                f"The prompt has {len(row)} tokens{requested}; the context is {self.context}. "
                "Shorten it, or ask for fewer."
            )
            raise HttpError(400, message, param, "context_length_exceeded")

    async def encode_prompts(
        self, texts: Sequence[str | list[int]], bos: bool = True
    ) -> list[list[int]]:
        """Token ids of each prompt: a decoder's texts after its bos, an encoder's in their frame.
        Raises HttpError for prompts that are empty or too long."""
        self.check_lengths(texts, "prompt")
        refuse(not all(texts), "The prompt is empty; give a text, or token ids.", "prompt")

        def encode(text: str) -> Any:
            if isinstance(self.config, config.Encoder):
                return self.tokenizer.encode_pair(text, special=True)[0]
            return self.tokenizer.encode(text, bos=bos and self.starts_with_bos)

        def encode_texts() -> list[list[int]]:
            return [text if isinstance(text, list) else encode(text) for text in texts]

        rows = await to_thread.run_sync(encode_texts)
        for row in rows:
            check_ids(row, self.config.embed.vocab, "prompt")
            self.check_context(row, 0, "prompt")
        return rows

    async def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Renders messages with the chat template and returns their token ids."""
        template = self.template
        message = (
            f'"{self.id}" has no chat template; start the server with --chat-template FILE, or '
            "use /v1/completions."
        )
        refuse(template is None, message, "model")
        assert template is not None
        rendered = [message.to_template() for message in messages]
        self.check_lengths([message["content"] for message in rendered], "messages")
        return await to_thread.run_sync(template.tokens, rendered)


def check_count(texts: Sequence[object], param: str) -> None:
    """Raises HttpError 400 for more texts, or more characters of them, than a request may hold."""
    refuse(
        len(texts) > MOST_TEXTS,
        f"These are {len(texts)} texts; a request may hold {MOST_TEXTS}.",
        param,
    )
    total = sum(len(text) for text in texts if isinstance(text, str))
    refuse(
        total > MOST_CHARACTERS,
        f"The texts have {total} characters; {MOST_CHARACTERS} are read at most.",
        param,
    )


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises HttpError 400 for ids outside the vocabulary."""
    is_unknown = first_outside(ids, vocab_size) is not None
    refuse(is_unknown, f"Tokens are 0 to {vocab_size - 1}; {param} holds another.", param)


class Registry(Models):
    """Served models by id, in the order of the command line."""

    entries: Mapping[str, ServedModel]  # type: ignore[assignment]

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.entries = {served.id: served for served in models}
        self.sources = []

    def __getitem__(self, id: str | None) -> ServedModel:
        """The model of that id; None is the first. Raises HttpError 404."""
        name = next(iter(self.entries)) if id is None else id
        return self.entries[name] if name in self.entries else super().__getitem__(name)  # type: ignore[return-value]

    def close(self) -> None:
        """Ends every engine."""
        for served in self.entries.values():
            served.engine.close()


def model_id(name: str, taken: Sequence[str]) -> str:
    """Model id: folder, hub or recipe name, with a number if it is taken."""
    is_path = Path(name).exists() and not is_recipe(name)
    plain = Path(name).resolve().name.removesuffix(GGUF) if is_path else name
    return unique_id(plain, taken, "A-Za-z0-9._/-")


def open_models(
    names: Sequence[str],
    bounds: EngineLimits,
    *,
    dtype: str | None = None,
    device: Any = None,
    bits: int | None = None,
    template: Path | None = None,
    ids: Sequence[str] = (),
) -> Registry:
    """Loads every model; the first ones are called by ``ids``. Raises UserError as loading does."""
    check_names(ids, len(names))
    taken = list(ids)
    served = list[ServedModel]()
    for name in names[len(ids) :]:
        taken.append(model_id(name, taken))
    for id, name in zip(taken, names, strict=True):
        checkpoint = Checkpoint.open(name)
        model = checkpoint.model(dtype=dtype, device=device, bits=bits)
        served.append(ServedModel(id, checkpoint, model, bounds, template))
    return Registry(served)


def check_names(ids: Sequence[str], models: int) -> None:
    """Raises UserError for names that no client could send, for the same twice, and for more names
    than models."""
    need(
        len(ids) <= models,
        f"--name is given {len(ids)} times for {models} models; give it once a model at most.",
    )
    for id in ids:
        plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*", id) and len(id) <= LONGEST_NAME
        need(
            bool(plain),
            f'--name "{id[:80]}" is no name; give letters, digits and . _ : @ / + '
            "-, a letter first.",
        )
        need(ids.count(id) == 1, f'--name "{id}" is given twice; each model needs its own.')
