"""The mean of a text's word vectors, and two layers over it: an encoder without blocks, trained as
any other.

    words -> vectors (word2vec) -> mean -> linear, relu -> linear -> labels

It is a config of the house, so `glassformer train`, `compare` and `classify` know it already.
"""

from __future__ import annotations

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers

from ...core import config
from ...core.nn import Model, build_model
from ...core.tokenizer.tokenizer import Tokenizer
from ...formats.tokenizer_forms import from_json
from .vectors import Vectors
from .word_index import WORD

SPECIAL = ("<pad>", "<unk>")


def encoder(
    vectors: Vectors, labels: int = 2, context: int = 128, seed: int = 0
) -> tuple[Model, Tokenizer]:
    """The model and the tokenizer of its words; an unknown word has a vector of zeros, to be
    learned."""
    words, width = len(vectors.words), vectors.table.shape[1]
    # a stack needs a pattern, which is laid 0 times
    nothing = config.Block(config.Attention(1), config.MLP(1))
    shape = config.Encoder(
        width,
        context,
        config.Embed(words + len(SPECIAL)),
        config.Stack(0, (nothing,), causal=False, dropout=0.3),
        None,
        config.Init(std=None, residual="plain"),
        config.Pool("mean", "relu", labels, dropout=0.3),
    )
    model = build_model(shape, seed=seed)
    with torch.no_grad():
        table = model.embed.token.weight
        table.zero_()
        table[:words] = torch.from_numpy(vectors.table)
    return model, _tokenizer(vectors)


def _tokenizer(vectors: Vectors) -> Tokenizer:
    """Words as ``vocabulary.split`` finds them."""
    names = {word: row for row, word in enumerate((*vectors.words, *SPECIAL))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        tokenizers.Regex(WORD.pattern), "removed", invert=True
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return from_json(
        tokenizer.to_str(), {"pad": "<pad>", "unk": "<unk>"}, "The vocabulary of the vectors"
    )
