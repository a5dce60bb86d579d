"""Request bodies of every endpoint, with their limits."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from .asgi.limits import (
    MOST_BIASES,
    MOST_CHOICES,
    MOST_LOGPROBS,
    MOST_MESSAGES,
    MOST_SCHEMA,
    MOST_TEXTS,
    MOST_TOKENS,
)
from .fields import Ids, JsonInt, Name, Number, RequestBody, Stops, Texts, field_error

Seed = Annotated[JsonInt, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[JsonInt, Field(ge=1, le=MOST_TOKENS)]
Positions = Annotated[list[JsonInt], Field(min_length=1, max_length=64)]
InspectNames = Annotated[list[Name], Field(min_length=1, max_length=64)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Choices = Annotated[JsonInt, Field(ge=1, le=MOST_CHOICES)]
Logprobs = Annotated[JsonInt, Field(ge=0, le=MOST_LOGPROBS)]
Grammar = Annotated[str, Field(min_length=1, max_length=MOST_SCHEMA)]
TopCount = Annotated[JsonInt, Field(ge=1, le=100)]
Beams = Annotated[JsonInt, Field(ge=1, le=32)]


def example(**fields: Any) -> ConfigDict:
    """Model config with an example body for openapi.json and for schema-based fuzzers."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class ModelRequest(RequestBody):
    """A request to one of the served models; without ``model`` to the first."""

    model: Name | None = None


class StreamOptions(RequestBody):
    """Options of a stream."""

    include_usage: bool = False


class JsonSchema(RequestBody):
    """A JSON schema with a name; it is enforced, whatever ``strict`` says."""

    name: Name = "answer"
    description: str | None = None
    schema_: Annotated[dict[str, JsonValue] | bool, Field(alias="schema")] = True
    strict: bool | None = None


class ResponseFormat(RequestBody):
    """Format of the answer: any text, any JSON object, or JSON that matches a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise field_error("json_schema is missing; give the schema there.")
        return self


GRAMMAR_FIELDS = ("response_format", "guided_json", "guided_regex", "guided_grammar")
FOREIGN_GRAMMAR_PREFIXES = (
    "guided",
    "structur",
    "response_format",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
)


class InspectOptions(ModelRequest):
    """Values to inspect, and ``edits`` to apply, as in `glassformer look`."""

    inspect: InspectNames | None = None
    top: TopCount = 5
    track: Annotated[list[Name], Field(max_length=16, default_factory=list)]
    edits: Annotated[
        list[Annotated[str, Field(max_length=4096)]], Field(max_length=16, default_factory=list)
    ]


class GenerationRequest(InspectOptions):
    """Fields shared by completions and chat; ``positions`` "new" are those that predict the new
    tokens."""

    @classmethod
    def refuse(cls, name: str, names: list[str]) -> None:
        """Suggests a supported grammar field for the names that other servers use."""
        if name.lower().startswith(FOREIGN_GRAMMAR_PREFIXES) or get_close_matches(
            name, GRAMMAR_FIELDS, 1, 0.7
        ):
            near = (get_close_matches(name, GRAMMAR_FIELDS, 1, 0.6) or ["guided_json"])[0]
            raise field_error(
                f'{name[:80]} is no field here; did you mean "{near}"? Forms are given '
                f"by {', '.join(GRAMMAR_FIELDS)}."
            )
        super().refuse(name, names)

    positions: Positions | Literal["new"] | None = None
    n: Choices | None = 1
    best_of: Choices | None = None
    temperature: Annotated[Number, Field(ge=0, le=100)] | None = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = 1.0
    top_k: Annotated[JsonInt, Field(ge=-1, le=MOST_TOKENS)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = 0.0
    frequency_penalty: Penalty | None = 0.0
    logit_bias: (
        Annotated[
            dict[str, Annotated[Number, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES)
        ]
        | None
    ) = None
    seed: Seed | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[Ids, Field(max_length=64)] | None = None
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_regex: Grammar | None = None
    guided_grammar: Grammar | None = None
    guided_json: dict[str, JsonValue] | bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options is for a stream; give stream: true, or leave it out.")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise field_error(
                "best_of is not supported, since all n continuations are answered; leave "
                "it out and give n."
            )
        if self.inspect is None and (
            self.positions is not None or self.track or "top" in self.model_fields_set
        ):
            raise field_error("inspect is missing; positions, track and top say more of it.")
        constraints = [self.guided_regex, self.guided_grammar, self.guided_json]
        formatted = self.response_format is not None and self.response_format.type != "text"
        if sum(constraint is not None for constraint in constraints) + formatted > 1:
            raise field_error(
                "response_format, guided_json, guided_regex and guided_grammar exclude "
                "each other; give one."
            )
        return self


class CompletionRequest(GenerationRequest):
    """POST /v1/completions"""

    model_config = example(prompt="The cat", max_tokens=8, temperature=0.7, seed=1)

    prompt: Texts
    max_tokens: Annotated[JsonInt, Field(ge=0, le=MOST_TOKENS)] | None = 16
    echo: bool | None = False
    logprobs: Logprobs | None = None
    add_special_tokens: bool | None = True

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise field_error(
                "max_tokens is 0, so there is nothing to answer; give 1 or more, or echo: true."
            )
        return self


class MessagePart(RequestBody):
    """A part of a message; only texts are read, and nothing is fetched."""

    type: Name
    text: str | None = None

    @model_validator(mode="after")
    def _text(self) -> Self:
        if self.type != "text" or self.text is None:
            raise field_error(
                'a part of a message is {"type": "text", "text": "..."}; images, sounds and '
                "files are not read."
            )
        return self


class Message(RequestBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        str | Annotated[list[MessagePart], Field(min_length=1, max_length=MOST_MESSAGES)] | None
    ) = None
    # no special token can hide in it
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")] | None = None

    @model_validator(mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        if isinstance(value, dict) and (
            value.get("role") in ("tool", "function") or value.get("tool_calls")
        ):
            raise field_error(
                "messages of tools are not supported yet; send those of system, user and assistant."
            )
        return value

    @model_validator(mode="after")
    def _content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error(
                "content is missing; give a text, which only an assistant's message may lack."
            )
        return self

    def to_template(self) -> dict[str, str]:
        """The fields that templates read; the content as one text."""
        content = self.content or ""
        text = (
            content if isinstance(content, str) else "".join(piece.text or "" for piece in content)
        )
        return {"role": self.role, "content": text} | ({"name": self.name} if self.name else {})


Messages = Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions"""

    model_config = example(
        messages=[{"role": "user", "content": "Who are you?"}], max_tokens=8, seed=1
    )

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tool_choice: Literal["none", "auto"] | None = None
    logprobs: bool | None = False
    top_logprobs: Logprobs | None = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs needs logprobs: true; give both.")
        return self


class TokenizeRequest(ModelRequest):
    """POST /tokenize: a prompt, or the messages of a conversation."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = True
    return_token_strs: bool | None = False

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise field_error("give either prompt or messages.")
        return self


class DetokenizeRequest(ModelRequest):
    """POST /detokenize"""

    tokens: Annotated[Ids, Field(max_length=MOST_TOKENS)]


class EmbeddingRequest(ModelRequest):
    """POST /v1/embeddings"""

    model_config = example(input=["The cat sat", "A dog ran"])

    input: Texts
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[JsonInt, Field(ge=1, le=1 << 20)] | None = None


Words = Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
TextOrTexts = str | Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]


class ScoreRequest(ModelRequest):
    """POST /score: each text of one side with each of the other, or one with all."""

    text_1: TextOrTexts
    text_2: TextOrTexts


class ClassifyRequest(ModelRequest):
    """POST /classify; ``second`` are the other texts, where the model reads pairs."""

    model_config = example(input=["The cat sat"])

    input: TextOrTexts
    second: TextOrTexts | None = None


class TagRequest(ModelRequest):
    """POST /v1/tag: sentences, each a text whose words stand between spaces, or a list of words."""

    model_config = example(input=["Anna saw Rome"])

    input: str | Annotated[list[str | Words], Field(min_length=1, max_length=MOST_TEXTS)]


class RerankDocument(BaseModel):
    """A document of Cohere's first rerank; what else a client keeps in it is not read."""

    model_config = ConfigDict(extra="ignore", strict=True)

    text: str


class RerankRequest(ModelRequest):
    """POST /v1/rerank and /v2/rerank, as Cohere's client sends it."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | RerankDocument], Field(min_length=1, max_length=MOST_TEXTS)]
    top_n: Annotated[JsonInt, Field(ge=1, le=MOST_TOKENS)] | None = None
    return_documents: bool | None = False


class FillRequest(ModelRequest):
    """POST /v1/fill: a text with blanks, ``___`` or the mask token."""

    input: Annotated[str, Field(min_length=1)]
    top: TopCount = 5
    order: Literal["apart", "left", "sure"] = "apart"


class TranslateRequest(InspectOptions):
    """POST /v1/translate: sources for an encoder-decoder, searched with beams; each that is found
    can be inspected."""

    model_config = example(input="the cat sat", beams=2, max_new=8)

    input: TextOrTexts
    beams: Beams = 5
    best: Beams = 1
    length_penalty: Annotated[Number, Field(ge=-10, le=10)] = 1.0
    max_new: Annotated[JsonInt, Field(ge=1, le=4096)] = 200
    positions: Positions | None = None


class InspectRequest(InspectOptions):
    """POST /v1/inspect: one text, beside the ``source`` of an encoder-decoder, and what is to be
    seen of it."""

    model_config = example(prompt="The cat", inspect=["top_tokens"], positions=[-1], top=2)

    prompt: Texts
    source: Texts | None = None
    inspect: InspectNames
    positions: Positions | None = None
