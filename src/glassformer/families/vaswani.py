"""The Transformer of 2017: encoder and decoder, norms after, sines for positions, one table for all
three ends.

How it was trained stands in a run file: ``label_smoothing = 0.1``, a schedule of the type
``InverseSqrt`` with 4,000 steps of warmup, AdamW with betas 0.9 and 0.98; the paper averages the
last checkpoints and searches with 4 beams.

Its published layout is transformers' Marian, whose sines come before the cosines (``halves``); the
paper, and so the sizes here, lets them take turns. Marian itself, tensor2tensor and OpenNMT-tf also
space the waves in another way, which no published layout can say: ``Sinusoidal`` has them all.
"""

from __future__ import annotations

from ..core.config import serial
from ..core.config.layers import MLP, Embed, Init, LayerNorm
from ..core.config.model import Attention, Block, EncoderDecoder, Model
from ..core.config.position import Sinusoidal
from .keys import MOST_TOKENS, ConfigWords, Key, Section, keys
from .pair_pages import BOTH_SIDES, pair, pair_table, scale_key, start, template
from .recipe import ConfigReader, Settings, page


def block_of(heads: int, hidden: int) -> Block:
    """A block of the paper, with biases everywhere."""
    return Block(Attention(heads, bias=True), MLP(hidden, "relu", bias=True), LayerNorm(), "post")


def vaswani(
    dim: int, depth: int, heads: int, hidden: int, vocab: int, dropout: float
) -> EncoderDecoder:
    """The paper's shape: biases everywhere but in the head, embeddings scaled by sqrt(dim). The tiny
    one is of Wu et al. 2021 (arXiv 2105.14462), for Multi30k."""
    init = Init(None, dim**-0.5, "plain")
    embed = Embed(vocab, scale=dim**0.5)
    return pair(
        dim,
        1024,
        embed,
        (depth, depth),
        block_of(heads, hidden),
        Sinusoidal(),
        init=init,
        dropout=dropout,
    )


def _one_vocabulary(raw: ConfigReader) -> None:
    size = raw.integer("vocab_size", most=MOST_TOKENS)
    raw.only("decoder_vocab_size", size, "both sides share one vocabulary here")


def _biased(raw: ConfigReader) -> bool:
    """True where the head has a bias: files of a bare model hold none, and a word of ours says so."""
    return raw.flag("head_bias", raw.weights is None or raw.holds("final_logits_bias"))


def _write_shared(model: Model) -> Settings:
    """The words of tables that all share, and a word of ours for a head without a bias."""
    words = ("tie_word_embeddings", "share_encoder_decoder_embeddings")
    bias = {} if model.head and model.head.bias else {"head_bias": False}
    return {**dict.fromkeys(words, True), **bias}


def layout(model: Model) -> Model:
    """The same model with a bias in its head: what the published files hold."""
    return serial.change(model, {"head.bias": True})


page(
    "vaswani",
    make=vaswani,
    words=ConfigWords(
        template(block_of(1, 1), Sinusoidal(halves=True)),
        (
            *BOTH_SIDES,
            scale_key(False),
            *keys(activation_function="gelu"),
            Key("", "head.bias", _biased),
            Key("", "", _one_vocabulary),
            start(),
            Section(encode=_write_shared),
        ),
    ),
    weights=pair_table(prefix="model."),
    layout=layout,
)
