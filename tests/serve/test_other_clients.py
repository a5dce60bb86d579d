"""Clients that others wrote on top of OpenAI's: LangChain, litellm and instructor, over a live server.

    pip install langchain-openai langchain-tests litellm instructor

An untrained model answers nonsense, so what is read as data comes from the grammar. Biases of a JSON text's
quotes and braces let it end.
"""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import json
import os
from typing import Any, Literal, Union

import pytest
from pydantic import BaseModel, Field, field_validator

from .test_tools import live  # noqa: F401

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
BIAS = {"34": 12, "125": 8, "93": 8}  # of a double quote and of what closes an object or a list
SAMPLED: dict[str, Any] = {"temperature": 0.5, "seed": 3}
TALK: Any = [{"role": "user", "content": "hi"}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2, 3]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


def client_package(name):
    return pytest.importorskip(name, reason=f"needs {name}: pip install {name.replace('_', '-')}")


class Color(enum.Enum):
    red = "red"
    blue = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    color: Color


class Dog(BaseModel):
    kind: Literal["dog"]
    years: int = Field(ge=0, le=20)


class Owner(BaseModel):
    """The owner of a pet."""

    name: str = Field(min_length=1, max_length=6)
    pet: Union[Cat, Dog] = Field(discriminator="kind")  # noqa: UP007
    others: list[Dog] = Field(max_length=2)
    rating: float | None = Field(None, ge=0, le=1)
    code: str = Field(pattern="^[a-z]{2,3}$")


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def merge(chunks):
    first, *later = chunks
    return sum(later, first)


# ------------------------------------------------------------------------------- LangChain


@pytest.fixture
def chat(live):  # noqa: F811
    """A maker of LangChain's chat model."""
    langchain = client_package("langchain_openai")

    def make(model="hermes", **fields):
        return langchain.ChatOpenAI(
            model=model,
            base_url=f"{live.url}/v1",
            api_key="none",
            max_retries=0,
            **{"max_tokens": 300, **SAMPLED, **fields},
        )

    return make


def test_langchain_reads_answers(chat):
    from langchain_core.messages import HumanMessage

    message = chat().invoke("hi")
    streamed = merge(chat(stream_usage=True).stream("hi"))
    assert message.content == streamed.content != ""
    assert message.usage_metadata["output_tokens"] == streamed.usage_metadata["output_tokens"] > 0
    reasons = {m.response_metadata["finish_reason"] for m in (message, streamed)}
    assert len(reasons) == 1

    async def later():
        return merge([chunk async for chunk in chat().astream("hi")]).content

    assert asyncio.run(later()) == message.content
    assert len(chat().batch(["a", "b", [("system", "s"), ("human", "h")]])) == 3
    assert len(chat(n=3, seed=None).generate([[HumanMessage("x")]]).generations[0]) == 3
    scored = chat(logprobs=True, top_logprobs=2, max_tokens=5).invoke("hi")
    assert len(scored.response_metadata["logprobs"]["content"]) == 5
    cut = chat().invoke("hi", stop=[message.content[3:6]])
    assert cut.content == message.content[: message.content.index(message.content[3:6])]


@pytest.mark.parametrize("model", ["hermes", "mistral", "llama"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_langchain_calls_tools(model, api, chat):
    from langchain_core.messages import HumanMessage, ToolMessage

    fields: dict[str, Any] = {"extra_body": {"logit_bias": BIAS}}
    if api == "responses":
        fields |= {"use_responses_api": True, "seed": None, "output_version": "responses/v1"}
    tools = [{"type": "function", "function": WEATHER}]
    for choice in ("weather", "any"):
        bound = chat(model, **fields).bind_tools(
            tools, tool_choice=choice, parallel_tool_calls=False
        )
        for message in (bound.invoke("hi"), merge(bound.stream("hi"))):
            (call,) = message.tool_calls
            assert call["name"] == "weather" and call["args"]["city"] in ("Paris", "Rome")
            assert not message.invalid_tool_calls and call["args"]["days"] in (1, 2, 3)
            reply = ToolMessage("sun", tool_call_id=call["id"])
            after = chat(model, **fields, max_tokens=5).invoke([HumanMessage("hi"), message, reply])
            assert after.text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_langchain_gets_structured_output(method, api, chat):
    fields: dict[str, Any] = {"extra_body": {"logit_bias": BIAS}, "max_tokens": 900}
    if api == "responses":
        fields |= {"use_responses_api": True, "seed": None}
    model = chat(**fields)
    for strict in (None, True):
        output = model.with_structured_output(City, method=method, strict=strict)
        assert isinstance(output.invoke("hi"), City)
        assert [*output.stream("hi")]
    if api == "chat":
        plain = model.with_structured_output(Owner.model_json_schema(), method=method)
        assert Owner.model_validate(plain.invoke("hi"))
    assert isinstance(
        chat(**fields).with_structured_output(None, method="json_mode").invoke("hi"), dict
    )


def test_langchain_raises_what_it_declares(chat):
    import openai
    from langchain_core.exceptions import ContextOverflowError

    for call in (lambda m: m.invoke("hi"), lambda m: [*m.stream("hi")]):
        with pytest.raises(openai.NotFoundError):
            call(chat("nothing"))
        with pytest.raises(ContextOverflowError):
            call(chat(max_tokens=99_999))
        with pytest.raises(openai.BadRequestError, match="min_tokens is no field"):
            call(chat(extra_body={"min_tokens": 3}))
    with pytest.raises(openai.APITimeoutError):
        chat(max_tokens=3000, timeout=0.05, extra_body={"ignore_eos": True}).invoke("hi")


def test_langchain_embeds(server):
    langchain = client_package("langchain_openai")
    fields = {"model": "vectors", "base_url": f"{server.url}/v1", "api_key": "none"}
    embeddings = langchain.OpenAIEmbeddings(**fields, check_embedding_ctx_length=False)
    vectors = embeddings.embed_documents(["the cat", "a dog"])
    assert embeddings.embed_query("the cat") == vectors[0] != vectors[1]
    short = langchain.OpenAIEmbeddings(**fields, check_embedding_ctx_length=False, dimensions=4)
    assert len(short.embed_query("the cat")) == 4


# the answer itself has to be right, which chance does not give
NEEDS_SENSE = [
    "test_tool_calling",
    "test_tool_calling_async",
    "test_bind_runnables_as_tools",
    "test_tool_calling_with_no_arguments",
    "test_json_mode",
    "test_agent_loop",
    "test_unicode_tool_call_integration",
]

if importlib.util.find_spec("langchain_tests") and importlib.util.find_spec("langchain_openai"):
    from langchain_openai import ChatOpenAI
    from langchain_tests.integration_tests import ChatModelIntegrationTests

    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.asyncio
    class TestLangChainsSuite(ChatModelIntegrationTests):
        """LangChain's own tests of a chat model."""

        supports_json_mode = True
        has_tool_choice = True
        model_override_value = "mistral"
        url = ""

        @pytest.fixture(autouse=True, scope="class")
        @classmethod
        def _server(cls, live):
            cls.url = f"{live.url}/v1"

        @pytest.fixture(autouse=True)
        def _sense(self, request):
            if request.node.originalname in NEEDS_SENSE:
                pytest.skip("an untrained model answers nonsense")

        @property
        def chat_model_class(self):
            return ChatOpenAI

        @property
        def chat_model_params(self):
            return {
                "model": "hermes",
                "base_url": self.url,
                "api_key": "none",
                "max_tokens": 200,
                "temperature": 0.0,
                "stream_usage": True,
                "extra_body": {"logit_bias": BIAS},
            }

else:

    @pytest.mark.skip(
        reason="needs LangChain's tests: pip install langchain-openai langchain-tests"
    )
    def test_langchains_suite():
        """The class above takes its place."""


# --------------------------------------------------------------------------------- litellm


@pytest.fixture
def lite(live):  # noqa: F811
    """A caller of litellm.completion, and litellm."""
    litellm = client_package("litellm")

    def complete(model="openai/hermes", **fields):
        fields = {"messages": TALK, "max_tokens": 80, **SAMPLED, **fields}
        return litellm.completion(model=model, api_base=f"{live.url}/v1", api_key="none", **fields)

    return complete, litellm


@pytest.mark.parametrize("provider", ["openai", "custom_openai", "hosted_vllm"])
def test_litellm_reads_answers(provider, lite):
    complete, litellm = lite
    options = {"stream": True, "stream_options": {"include_usage": True}}
    answer = complete(f"{provider}/hermes")
    built = litellm.stream_chunk_builder(
        [*complete(f"{provider}/hermes", **options)], messages=TALK
    )
    assert built.choices[0].message.content == answer.choices[0].message.content != ""
    assert built.usage.completion_tokens == answer.usage.completion_tokens
    assert built.usage.prompt_tokens == answer.usage.prompt_tokens
    assert built.choices[0].finish_reason == answer.choices[0].finish_reason
    thinker = complete(f"{provider}/thinker").choices[0].message
    pieces = [*complete(f"{provider}/thinker", stream=True)]
    built = litellm.stream_chunk_builder(pieces).choices[0].message
    assert built.reasoning_content == thinker.reasoning_content != ""
    assert complete(f"{provider}/thinker", messages=[*TALK, thinker, *TALK]).choices
    scored = complete(f"{provider}/hermes", logprobs=True, top_logprobs=2, max_tokens=5)
    assert len(scored.choices[0].logprobs.content) == 5


@pytest.mark.parametrize("provider", ["openai", "custom_openai"])
def test_litellm_calls_tools_and_keeps_forms(provider, lite):
    complete, litellm = lite
    tools = [{"type": "function", "function": WEATHER}]
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        fields = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
        answer = complete(f"{provider}/hermes", **fields)
        chunks = [*complete(f"{provider}/hermes", stream=True, **fields)]
        built = litellm.stream_chunk_builder(chunks, messages=TALK)
        for result in (answer, built):
            assert result.choices[0].finish_reason == "tool_calls"
            (call,) = result.choices[0].message.tool_calls
            assert json.loads(call.function.arguments).keys() == {"city", "days"}
            reply = {"role": "tool", "tool_call_id": call.id, "content": "sun"}
            again = [*TALK, result.choices[0].message, reply]
            assert complete(f"{provider}/hermes", messages=again, tools=tools).choices
    answer = complete(f"{provider}/plain", response_format=City)
    assert City.model_validate_json(answer.choices[0].message.content)


def test_litellm_maps_errors(lite):
    complete, litellm = lite
    with pytest.raises(litellm.NotFoundError):
        complete("openai/nothing")
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(messages=[{"role": "user", "content": "x" * 5000}])
    with pytest.raises(litellm.BadRequestError, match="min_tokens is no field"):
        complete(extra_body={"min_tokens": 3})
    with pytest.raises(litellm.Timeout):
        body = {"ignore_eos": True}
        complete(max_tokens=3000, timeout=0.05, max_retries=0, extra_body=body)


def test_litellm_reads_responses(lite, live):  # noqa: F811
    litellm = lite[1]
    fields = {"model": "openai/hermes", "input": "hi", "max_output_tokens": 80}
    fields |= {"api_base": f"{live.url}/v1", "api_key": "none"}
    kinds = [event.type for event in litellm.responses(**fields, stream=True)]
    assert kinds[0] == "response.created" and kinds[-1] in (
        "response.completed",
        "response.incomplete",
    )
    tools = [{"type": "function", **WEATHER}]
    answer = litellm.responses(
        **fields, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.output
    reply = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    items = [*TALK, call.model_dump(), reply]
    assert litellm.responses(**{**fields, "input": items}).output


def test_litellm_embeds_ranks_and_continues(server):
    litellm = client_package("litellm")
    fields = {"api_base": f"{server.url}/v1", "api_key": "none"}
    answer = litellm.embedding(model="openai/vectors", input=["the cat", "a dog"], **fields)
    assert len(answer.data) == 2 and answer.usage.prompt_tokens > 0
    for provider in ("hosted_vllm", "jina_ai"):
        ranked = litellm.rerank(
            model=f"{provider}/pairs", query="cat", documents=["a", "b", "c"], top_n=2, **fields
        )
        assert len(ranked.results) == 2
    fields |= {"prompt": "O Romeo", "max_tokens": 8, **SAMPLED}
    model = "text-completion-openai/tiny"
    text = litellm.text_completion(model=model, **fields).choices[0].text
    pieces = litellm.text_completion(model=model, stream=True, **fields)
    assert "".join(piece.choices[0].text or "" for piece in pieces) == text != ""


# ------------------------------------------------------------------------------ instructor
MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]


@pytest.fixture
def ask(live):  # noqa: F811
    """A caller of instructor in a mode."""
    instructor = client_package("instructor")
    import openai

    def create(mode, response_model, kind="create", **fields):
        client = openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)
        fields = {"model": "hermes", "temperature": 0.5, "max_retries": 0, **fields}
        fields |= {"messages": TALK, "max_tokens": 900, "extra_body": {"logit_bias": BIAS}}
        completions = instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions
        return getattr(completions, kind)(response_model=response_model, **fields)

    return create


@pytest.mark.parametrize("mode", MODES)
def test_instructor_reads_models(mode, ask):
    owner = ask(mode, Owner)
    assert isinstance(owner, Owner) and isinstance(owner.pet, Cat | Dog)
    assert isinstance(ask(mode, Union[City, Dog]), City | Dog)  # noqa: UP007
    assert ask(mode, Literal["a", "b"]) in ("a", "b")
    assert all(isinstance(city, City) for city in ask(mode, list[City]))
    assert isinstance(ask(mode, City, "create_with_completion")[0], City)


@pytest.mark.parametrize("mode", MODES)
def test_instructor_reads_streams_piece_by_piece(mode, ask):
    pieces = [*ask(mode, City, "create_partial")]
    assert len(pieces) > 2, "arguments come as they are written"
    assert City.model_validate(pieces[-1].model_dump())


@pytest.mark.parametrize("mode", MODES)
def test_instructor_asks_again(mode, ask):
    values = list[int]()

    class Third(BaseModel):
        """A number."""

        days: Literal[1, 2, 3, 4, 5]

        @field_validator("days")
        @classmethod
        def _later(cls, value):
            values.append(value)
            if len(values) < 3:
                raise ValueError("take another")
            return value

    assert ask(mode, Third, max_retries=4).days == values[-1] and len(values) >= 3
