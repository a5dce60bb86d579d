"""POST /v1/completions: continuations of prompts, streamed or at once; ``echo`` adds the prompt
with its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from ..core.files import JsonObject
from .asgi.limits import MOST_CONTINUATIONS
from .asgi.replies import EventStream, refuse
from .generating import AnswerWriter, Choice, Finish, UsageObject, engine_request
from .inspecting import Inspection, with_inspection
from .logprobs import CompletionLogprobs, CompletionLogprobsWriter, ScoredToken, TokenDecoder
from .prompts import as_list, check_context, encode_prompts
from .schemas import CompletionRequest
from .tracking import Context


class CompletionChoice(TypedDict):
    """One continuation, or an increment of it; ``finish_reason`` is null until the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    inspect: NotRequired[Inspection]


class CompletionAnswer(TypedDict):
    """Completion response, or one chunk of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]


async def complete(context: Context, body: CompletionRequest) -> JsonObject | EventStream:
    """Continue one or several texts."""
    served = context.served
    context.require(served.continues, "continue texts")
    texts, n = as_list(body.prompt), body.n or 1
    count = len(texts) * n
    message = (
        f"{len(texts)} prompts with n = {n} are {count:,} continuations, and a request may ask for "
        f"{MOST_CONTINUATIONS:,}; send several requests."
    )
    refuse(count > MOST_CONTINUATIONS, message, "n")
    prompt_ids = await encode_prompts(served, texts, body.add_special_tokens is not False)
    max_new = 16 if body.max_tokens is None else body.max_tokens
    for row in prompt_ids:
        check_context(served, row, max_new, "max_tokens")
    request = await engine_request(context, body, prompt_ids[0], max_new, body.logprobs)
    prompt_logprobs = 0 if max_new == 0 else None
    if body.echo and body.logprobs is not None:
        prompt_logprobs = body.logprobs
    request = replace(request, prompt_logprobs=prompt_logprobs)
    requests = [with_inspection(served, body, replace(request, tokens=row)) for row in prompt_ids]
    return await CompletionWriter(context, body, await context.submit(requests)).write()


class CompletionChoiceWriter(Choice):
    """Text and log-probabilities of one choice; with echo the prompt comes first."""

    body: CompletionRequest

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logprobs = CompletionLogprobsWriter(
            self.context.served.tokenizer, self.body.logprobs or 0
        )
        self.is_prompt_due = bool(self.body.echo)

    @property
    def is_slow(self) -> bool:
        return self.is_prompt_due and self.body.logprobs is not None

    def answer(self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None) -> JsonObject:
        """The choice, or an increment of it."""
        tokenizer, logprobs = self.context.served.tokenizer, None
        if self.is_prompt_due:
            self.is_prompt_due = False
            text = tokenizer.decode(self.handle.request.tokens) + text
            decoder = TokenDecoder(tokenizer, False)
            prompt_logprobs = self.handle.prompt_logprobs or ()
            tokens = [*(decoder.push(*scored) for scored in prompt_logprobs), *tokens]
        if self.body.logprobs is not None:
            logprobs = self.logprobs.write(tokens)
        return {"index": self.number, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def chunks(
        self, text: str, tokens: Sequence[ScoredToken], finish: Finish | None
    ) -> list[JsonObject]:
        """The increment, where there is any."""
        choice = self.answer(text, tokens, finish)
        has_tokens = choice["logprobs"] is not None and choice["logprobs"]["tokens"]
        return [choice] if choice["text"] or finish is not None or has_tokens else []


class CompletionWriter(AnswerWriter):
    """Completion response."""

    choice_type = CompletionChoiceWriter
    id_prefix, object_type, chunk_type = "cmpl", "text_completion", "text_completion"
