"""BART and its kin, encoder-decoders for summaries and translation: mBART, M2M-100 (NLLB), PEGASUS.

            positions                  embeddings    norms    a stack ends
BART        learned, from row 2        normed        after    with its last block
mBART       learned, from row 2        normed        before   with a norm
M2M-100     sines, after the padding   -             before   with a norm
PEGASUS     sines                      -             before   with a norm

A target begins with ``decoder_start_token_id`` and then ``forced_bos_token_id``, the language of a
translation, where there is one. Their training may skip whole layers, which none does here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..core.config.embed_head import Embed
from ..core.config.feedforward import MLP, Activation
from ..core.config.model import Attention, Block, EncoderDecoder, Model, stacks
from ..core.config.norm import LayerNorm
from ..core.config.position import Learned, Sinusoidal
from .keys import Key, keys, only, read_keys, read_start, write_keys, write_start
from .names import NameRule, Table, rules
from .recipe import ConfigReader, Recipe, Settings
from .vaswani import BOTH_SIDES, pair, pair_table, scale_key

POSITIONS = "model.encoder.embed_positions.weight"  # PEGASUS' sines, as its files have them
BIAS = "final_logits_bias"
TABLE = Learned(1024, 2)  # as long as the context
NUMBERED = Sinusoidal(halves=True, endpoint=True, offset=2)  # one after the id of padding


@dataclass(frozen=True)
class Kin:
    """The differences of a family: its ``position``, its norms ``before`` or after, whether its
    embeddings are ``normed`` and ``scaled``; ``default_scaled``, ``default_act`` and
    ``default_start`` are for a file that is silent."""

    position: Learned | Sinusoidal = TABLE
    before: bool = True
    normed: bool = True
    scaled: bool = True
    act: Activation = "gelu"
    default_scaled: bool = False
    default_act: str = "gelu"
    default_start: int | None = None

    def model(
        self, dim: int, layers: tuple[int, int], heads: int, hidden: int, vocab: int, context: int
    ) -> EncoderDecoder:
        """A model of these sizes, so many ``layers`` in the encoder and in the decoder."""
        mlp, norm = MLP(hidden, self.act, bias=True), LayerNorm()
        return pair(
            dim,
            context,
            Embed(vocab, scale=dim**0.5 if self.scaled else 1.0),
            layers,
            Block(Attention(heads, bias=True), mlp, norm, "pre" if self.before else "post"),
            self._position(context),
            first_norm=norm if self.normed else None,
            last_norm=norm if self.before else None,
            dropout=0.1,
        )

    def _position(self, context: int) -> Learned | Sinusoidal:
        learned = isinstance(self.position, Learned)
        return Learned(context, TABLE.start) if learned else self.position

    @property
    def keys(self) -> tuple[Key, ...]:
        """The words of its config.json."""
        return (
            only("tie_word_embeddings", True, "the head shares the embeddings' table here"),
            only("is_decoder", False, "a decoder here stands beside its encoder"),
            *BOTH_SIDES,
            scale_key(self.default_scaled),
            *keys(activation_function=self.default_act),
            Key("", "head.bias", lambda raw: _held(raw, "head_bias", BIAS)),
        )

    def read_config(self, raw: ConfigReader) -> Any:
        """Its config.json as our config."""
        model = read_keys(raw, self.model(64, (1, 1), 1, 1, 1, 1024), self.keys)
        position: Any = self._position(model.context)
        if self.position == NUMBERED:
            pad = raw.value("pad_token_id", 1)
            raw.must(type(pad) is int and pad >= 0, "pad_token_id", "the id of a token")
            position = replace(position, offset=pad + 1)
        elif self.position != TABLE and _held(raw, "learned_positions", POSITIONS):
            position = Learned(model.context)
        sides: Settings = {
            name: replace(stack, position=position) for name, stack in stacks(model).items()
        }
        return replace(model, **sides, start=read_start(raw, self.default_start))

    def write_config(self, model: Model) -> Settings:
        """Our config as its config.json, as far as that can say it."""
        position = stacks(model)["encoder"].position
        unknown = {"decoder_start_token_id": None}  # not what theirs takes for an absent word
        raw = {**write_keys(model, self.keys), **unknown, **write_start(model), **bias(model)}
        if isinstance(position, Learned) and self.position != TABLE:
            raw["learned_positions"] = True
        offset = getattr(position, "offset", 0)
        return {**raw, "pad_token_id": offset - 1} if offset else raw


def _held(raw: ConfigReader, word: str, *names: str) -> bool:
    """True where the files hold weights that they may lack; a ``word`` of ours says it alone."""
    stated: bool = raw.flag(word, False)
    return stated if raw.weights is None else any(map(raw.holds, names))


def bias(model: Model) -> Settings:
    """A word of ours for a bias of the head, which the files of most lack."""
    return {"head_bias": True} if model.head and model.head.bias else {}


def table(model: Model) -> Table:
    """The names of the weights; which norms and tables of positions there are depends on the model."""
    layers: dict[str, str] = {}
    learned = []
    for side, stack in stacks(model).items():
        layers |= {f"model.{side}.layernorm_embedding": f"{side}.first_norm"}
        layers |= {f"model.{side}.layer_norm": f"{side}.last_norm"}
        if isinstance(stack.position, Learned):
            name = f"model.{side}.embed_positions.weight"
            learned.append(NameRule(name, f"{side}.position.weight"))
    return pair_table(*rules(layers), *learned, sines=not learned, prefix="model.")


def recipe(name: str, family: str, kin: Kin, paper: str, tokenizer: str, **sizes: Any) -> Recipe:
    """The recipe of a family, its sizes with - for _."""
    shapes = {size.replace("_", "-"): kin.model(*shape) for size, shape in sizes.items()}
    return Recipe(
        name=name.replace("_", "-"),
        paper=paper,
        sizes=shapes,
        architectures=(f"{family}ForConditionalGeneration", f"{family}Model"),
        model_type=name,
        tokenizer=tokenizer,
        read_config=kin.read_config,
        write_config=kin.write_config,
        weights=table,
        fixed=("pad_token_id",) if kin.position == NUMBERED else (),
    )


_LARGE = 1024, (12, 12), 16, 4096
BART = recipe(
    "bart",
    "Bart",
    Kin(before=False, scaled=False, default_start=2),
    "Lewis et al. 2020, BART: Denoising Sequence-to-Sequence Pre-training (arXiv 1910.13461)",
    "facebook/bart-base (byte-level BPE)",
    base=(768, (6, 6), 12, 3072, 50_265, 1024),
    large=(*_LARGE, 50_265, 1024),
    large_cnn=(*_LARGE, 50_264, 1024),
    distil_cnn_12_6=(1024, (12, 6), 16, 4096, 50_264, 1024),
)
MBART = recipe(
    "mbart",
    "MBart",
    Kin(),
    "Liu et al. 2020, Multilingual Denoising Pre-training (arXiv 2001.08210); Tang et al. 2020, 50 "
    "languages",
    "facebook/mbart-large-50 (SentencePiece)",
    large_cc25=(*_LARGE, 250_027, 1024),
    large_50=(*_LARGE, 250_054, 1024),
)
M2M_100 = recipe(
    "m2m_100",
    "M2M100",
    Kin(
        NUMBERED, normed=False, act="relu", default_scaled=True, default_act="relu", default_start=2
    ),
    "Fan et al. 2020, Beyond English-Centric Multilingual Machine Translation (arXiv 2010.11125); "
    "NLLB Team 2022 (arXiv 2207.04672)",
    "facebook/nllb-200-distilled-600M (SentencePiece)",
    **{
        "418m": (*_LARGE, 128_112, 1024),
        "1.2b": (1024, (24, 24), 16, 8192, 128_112, 1024),
        "nllb-600m": (*_LARGE, 256_206, 1024),
        "nllb-1.3b": (1024, (24, 24), 16, 8192, 256_206, 1024),
        "nllb-3.3b": (2048, (24, 24), 16, 8192, 256_206, 1024),
    },
)
PEGASUS = recipe(
    "pegasus",
    "Pegasus",
    Kin(Sinusoidal(halves=True), normed=False, act="relu", default_start=0),
    "Zhang et al. 2020, PEGASUS: Pre-training with Extracted Gap-sentences (arXiv 1912.08777)",
    "google/pegasus-xsum (Unigram)",
    large=(1024, (16, 16), 16, 4096, 96_103, 1024),
    xsum=(1024, (16, 16), 16, 4096, 96_103, 512),
)
