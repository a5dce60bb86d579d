"""Fields of the page's requests, from a JSON body or a query; what else is sent is not read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    StrictBool,
    ValidationError,
    model_validator,
)

from ...core.errors import need
from ..asgi.body_errors import field_error, is_ids, validation_error
from ..asgi.limits import MOST_MESSAGES

MAX_TEXT = 1 << 20  # characters of a text


def _ids(value: Any) -> Any:
    """Checks ids at once: of a million that are none pydantic would note each."""
    if not is_ids(value) or any(abs(id) >= 1 << 63 for id in value):
        raise field_error("ids are whole numbers of a vocabulary; give a list of them.")
    return [*map(int, value)]


Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(max_length=200)]
Ids = Annotated[list[int], SkipValidation, BeforeValidator(_ids)]
Edit = Annotated[str, Field(max_length=2000)]


class PageFields(BaseModel):
    """Base of all: null is the default."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _sent(cls, value: Any) -> Any:
        sent = isinstance(value, dict)
        if sent:
            return {name: item for name, item in value.items() if item is not None}
        return value


F = TypeVar("F", bound=PageFields)


def read(model: type[F], fields: Any) -> F:
    """The fields as ``model`` has them. Raises HttpError for what is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error) from None


class InputFields(PageFields):
    """A model and what it reads: a text or ids, beside the source of an encoder-decoder."""

    model: Name = ""
    text: Text | None = None
    ids: Ids | None = None
    source: Text | None = None
    edits: Annotated[list[Edit], Field(max_length=100)] = []

    def parsed_edits(self) -> list[Any]:
        from ...sight.edits import parse

        return [parse(edit, {}) for edit in self.edits]


class RunFields(InputFields):
    """A text to be traced; ``cut`` leaves out what the context does not hold."""

    cut: bool = False


class SamplingSettings(PageFields):
    """Settings of sampling, as ``glassformer.generate`` has them."""

    model_config = ConfigDict(extra="forbid")

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class GrowthFields(InputFields):
    """A text to be continued; ``start`` are the first ids of an encoder-decoder's target."""

    max_new: Annotated[int, Field(ge=1, le=4096)] = 64
    start: Ids | None = None


class ChatMessage(PageFields):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Text


class GenerateFields(GrowthFields):
    """One continuation, drawn: of a text, or the answer to ``messages``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = (
        None
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    settings: SamplingSettings = SamplingSettings()


class BeamFields(GrowthFields):
    """The likeliest continuations."""

    beams: Annotated[int, Field(ge=1, le=8)] = 4
    max_new: Annotated[int, Field(ge=1, le=4096)] = 32


class CellFields(PageFields):
    """A number of a run, with so many of the terms that it is made of."""

    address: Annotated[str, Field(min_length=1, max_length=500)]
    terms: Annotated[int, Field(ge=0, le=20_000)] = 64


class TensorFields(CellFields):
    """A tensor of a run, as these numbers."""

    kind: Annotated[Literal["f32", "f16", "u8"], Field(alias="as")] = "f32"
    map: Literal["lin", "sqrt"] = "lin"
    pool: str | None = None
    range: str | None = None


class ThumbnailFields(PageFields):
    """Attention maps of some layers, so many pixels wide."""

    kind: Literal["pattern", "scores"] = "pattern"
    px: Annotated[int, Field(ge=4, le=128)] = 48
    layers: Annotated[str, Field(pattern=r"^\d{0,9}(:\d{0,9})?$")] = ""


class PositionFields(PageFields):
    """A place in a run's text; negative from its end."""

    position: int = -1


class AttributionFields(PageFields):
    """A logit, or one against another: tokens or ids at a place in the text."""

    position: int | None = None
    token: str = ""
    against: str = ""


class CircuitFields(PageFields):
    """An answer to follow back, or one ``instead`` of which it is given, with the texts at whose values
    the rest is held."""

    answer: str = ""
    instead: str = ""
    position: int | None = None
    corrupted: Text = ""
    corrupted_source: Text = ""
    least: float = 0.05
    greedy: bool = False
    neurons: bool = False
    draws: Annotated[int, Field(ge=0, le=100)] = 20
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


class LensFields(PageFields):
    """Places in a text, and tokens to follow through the depths."""

    positions: Annotated[list[int], Field(min_length=1, max_length=16)] | None = None
    track: Annotated[list[int | str], Field(max_length=16)] = []
    top: Annotated[int, Field(ge=1, le=100)] = 5


class ContextsFields(PageFields):
    """A word that stands in two texts."""

    model: Name = ""
    word: Name = ""
    texts: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=2)] = []


class CompareFields(PageFields):
    """A text for several tokenizers."""

    text: Text
    tokenizers: Annotated[list[str], Field(min_length=1, max_length=12)]


class StepsFields(PageFields):
    """The word that token ``at`` of a text belongs to."""

    text: Text = ""
    tokenizer: Name = ""
    at: int = 0


class SeriesFields(PageFields):
    """Rows of a training from ``since`` on, in so many points."""

    since: Annotated[int, Field(ge=0, le=1 << 50)] = 0
    most: Annotated[int, Field(ge=2, le=20_000)] = 2000


class PauseFields(PageFields):
    """A training is to wait, or to go on."""

    paused: StrictBool


class ProbeFields(PageFields):
    """A text for a training's checkpoints."""

    text: Annotated[str, Field(max_length=2000)] = ""


def within(name: str, value: int, low: int, high: int) -> None:
    """UserError for a number beyond bounds that the request's model or text sets."""
    need(low <= value <= high, f'{name} is "{value}"; give a number from {low} to {high}.')
