"""Request bodies: their base, types of fields with their limits, and bodies of texts that are continued.

Fields are read strictly: true is no number, nor is "1".
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SkipValidation,
    TypeAdapter,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from .asgi.body_errors import field_error, is_ids
from .asgi.limits import (
    LONGEST_NAME,
    LONGEST_STOP,
    MOST_BIASES,
    MOST_CHOICES,
    MOST_LOGPROBS,
    MOST_SCHEMA,
    MOST_STOPS,
    MOST_TEXTS,
    MOST_TOKENS,
)

TYPO_SIMILARITY = 0.85  # of two names: max_token is max_tokens, and min_tokens is not
IGNORED_FIELDS = """
user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention
function_call prediction parallel_tool_calls include_obfuscation spaces_between_special_tokens
"""
"""Fields of other servers that change no answer here; they are ignored."""

IS_OFF = """
background continue_final_message continuous_usage_stats early_stopping echo include_stop_str_in_output
return_token_ids return_tokens_as_token_ids use_beam_search
"""
NEUTRAL_VALUES: dict[str, Any] = {
    **dict.fromkeys(IS_OFF.split(), False),
    **{
        name: []
        for name in ("annotations", "bad_words", "functions", "logprobs", "tool_calls", "tools")
    },
    **dict.fromkeys(("length_penalty", "num_beams", "typical_p"), 1),
    **dict.fromkeys(("add_generation_prompt", "detokenize", "skip_special_tokens"), True),
    **dict.fromkeys(("min_tokens", "priority"), 0),
    "chat_template_kwargs": {},
    "modalities": ["text"],
    "suffix": "",
    "truncation": "disabled",
}
"""Fields of other servers by the one value that asks for what is done here anyway; any other is
refused."""

STATELESS = (
    "no response is kept here; leave it out, and send the items of the conversation as input."
)
UNSUPPORTED = {
    "background": "a response is computed while its client waits; leave it out.",
    **dict.fromkeys(("conversation", "previous_response_id"), STATELESS),
    "functions": "tools of /v1/chat/completions take their place.",
    **dict.fromkeys(
        ("chat_template", "chat_template_kwargs"),
        "the chat template is the model's own and no request can change it; leave it out.",
    ),
    "prompt_logprobs": "a completion with echo and logprobs gives them.",
    "suffix": "the model continues a text and fills no gap; leave it out.",
    "use_beam_search": "translations are searched for by /v1/translate.",
}
"""Fields that other servers know and this one refuses, since an answer without them would be
wrong."""

LENGTHS = ("length", "max_completion_tokens", "max_new_tokens", "n_predict", "num_predict")
SYNONYMS = {
    **dict.fromkeys(LENGTHS, "max_tokens"),
    **dict.fromkeys(("allowed_token_ids", "bad_words"), "logit_bias"),
    **dict.fromkeys(("stop_sequences", "stop_strings"), "stop"),
    "n_probs": "logprobs",
    "num_return_sequences": "n",
    "control_vectors": "directions",
    "repeat_penalty": "repetition_penalty",
    "top_n_tokens": "top_logprobs",
}
"""Other servers' names of what a field here does."""


@cache
def _by_alias(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


class RequestBody(BaseModel):
    """Base of request bodies: null means the default, and an unknown field that could change the
    answer is rejected."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _sent_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        fields = _by_alias(cls)
        kinds = get_args(fields["type"].annotation) if "type" in fields else ()
        if kinds and (kind := value.get("type", kinds[0])) not in kinds:  # its fields are others
            *first, last = map(repr, kinds)
            choices = " or ".join([", ".join(first)] * bool(first) + [last])
            raise field_error(
                f"the type {json.dumps(kind)[:80]} is not served here; give {choices}."
            )
        for name, setting in value.items():
            neutral = setting in (None, NEUTRAL_VALUES.get(name))
            if not neutral and name not in fields and name not in IGNORED_FIELDS.split():
                cls.refuse(name, [*fields])
        return {
            name: setting
            for name, setting in value.items()
            if setting is not None or (name in fields and fields[name].is_required())
        }

    @classmethod
    def refuse(cls, name: str, names: list[str]) -> None:
        """Raises for an unknown field, with a suggestion for typos and names of other servers."""
        if name in UNSUPPORTED:
            raise field_error(f"{name} is not supported here: {UNSUPPORTED[name]}")
        near = [SYNONYMS[name]] if SYNONYMS.get(name) in names else []
        near = near or (
            get_close_matches(name, names, 1, TYPO_SIMILARITY) if len(name) <= 64 else []
        )
        hint = f'; did you mean "{near[0]}"?' if near else "; leave it out."
        raise field_error(f"{ascii(name[:80])[1:-1]} is no field here{hint}")


def _to_int(value: Any) -> Any:
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )


JsonInt = Annotated[int, BeforeValidator(_to_int)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Ids = list[JsonInt]


def _texts(value: Any) -> list[str | list[int]]:
    """Validates a text, token ids, or a list of either, and gives a list."""
    texts = value if isinstance(value, list) and not is_ids(value) else [value]
    if not all(isinstance(text, str) for text in texts) and not all(map(is_ids, texts)):
        raise field_error(
            "This is neither a text nor token ids; give a text, a list of ids, or a list of either."
        )
    if value == []:
        raise field_error("This is empty; give a text, a list of ids, or a list of either.")
    if len(texts) > MOST_TEXTS:
        raise field_error(
            f"These are {len(texts)} texts, and a request may hold {MOST_TEXTS}; send "
            "several requests."
        )
    return [text if isinstance(text, str) else [*map(int, text)] for text in texts]


Words = Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
TextOrTexts = str | Words
SeveralIds = Annotated[list[Ids], Field(min_length=1, max_length=MOST_TEXTS)]
AnyTexts: Any = str | Words | Annotated[Ids, Field(min_length=1)] | SeveralIds
Texts = Annotated[
    list[str | list[int]],
    # of a union pydantic tries every form, and notes each of a million ids that is no text
    SkipValidation,
    BeforeValidator(_texts),
    WithJsonSchema(TypeAdapter(AnyTexts).json_schema()),
]
"""Prompts, or texts to be embedded: one or several, as texts or as token ids; a list of them."""

Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)]

Seed = Annotated[JsonInt, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[JsonInt, Field(ge=1, le=MOST_TOKENS)]
Positions = Annotated[list[JsonInt], Field(min_length=1, max_length=64)]
InspectNames = Annotated[list[Name], Field(min_length=1, max_length=64)]
Penalty = Annotated[Number, Field(ge=-2, le=2)]
Choices = Annotated[JsonInt, Field(ge=1, le=MOST_CHOICES)]
Logprobs = Annotated[JsonInt, Field(ge=0, le=MOST_LOGPROBS)]
Grammar = Annotated[str, Field(min_length=1, max_length=MOST_SCHEMA)]
TopCount = Annotated[JsonInt, Field(ge=1, le=100)]


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
    """Values to inspect, and ``edits`` to apply, as in `glassformer look`; ``directions`` are control
    vectors with their strengths, by the names that they are served by."""

    inspect: InspectNames | None = None
    top: TopCount = 5
    track: Annotated[list[Name], Field(max_length=16)] = []
    edits: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=16)] = []
    directions: Annotated[dict[Name, Number], Field(max_length=16)] = {}


class SamplingRequest(ModelRequest):
    """Fields of every continuation."""

    temperature: Annotated[Number, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[JsonInt, Field(ge=-1, le=MOST_TOKENS)] = 0
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[Number, Field(gt=0, le=100)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        dict[str, Annotated[Number, Field(ge=-100, le=100)]], Field(max_length=MOST_BIASES)
    ] = {}
    seed: Seed | None = None
    stop: Stops = []
    stop_token_ids: Annotated[Ids, Field(max_length=64)] = []
    ignore_eos: bool = False
    stream: bool = False


class GenerationRequest(InspectOptions, SamplingRequest):
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
    n: Choices = 1
    best_of: Choices | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_regex: Grammar | None = None
    guided_grammar: Grammar | None = None
    guided_json: dict[str, JsonValue] | bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options is for a stream; give stream: true, or leave it out.")
        if self.best_of is not None and self.best_of != self.n:
            raise field_error(
                "best_of is not supported, since all n continuations are answered; leave "
                "it out and give n."
            )
        if self.inspect is None and (
            self.positions is not None or self.track or "top" in self.model_fields_set
        ):
            raise field_error("inspect is missing; positions, track and top say more of it.")
        is_text = self.response_format is not None and self.response_format.type == "text"
        # response_format is the first of them
        names = [name for name in GRAMMAR_FIELDS if getattr(self, name) is not None][is_text:]
        if len(names) > 1:
            raise field_error(f"{' and '.join(names)} exclude each other; give one.")
        return self

    @property
    def grammar(self) -> tuple[str, Any] | None:
        """Kind and source of the grammar that constrains the answer."""
        if self.guided_regex is not None:
            return "regex", self.guided_regex
        if self.guided_grammar is not None:
            return "lark", self.guided_grammar
        form = self.response_format
        source = self.guided_json
        if form is not None and form.type != "text":
            source = {"type": "object"}
            if form.type == "json_schema" and form.json_schema is not None:
                source = form.json_schema.schema_
        return None if source is None else ("json", source)


class CompletionRequest(GenerationRequest):
    """POST /v1/completions"""

    model_config = example(prompt="The cat", max_tokens=8, temperature=0.7, seed=1)

    prompt: Texts
    max_tokens: Annotated[JsonInt, Field(ge=0, le=MOST_TOKENS)] = 16
    echo: bool = False
    logprobs: Logprobs | None = None
    add_special_tokens: bool = True

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            raise field_error(
                "max_tokens is 0, so there is nothing to answer; give 1 or more, or echo: true."
            )
        return self
