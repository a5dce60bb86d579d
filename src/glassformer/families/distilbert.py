"""DistilBERT: BERT's blocks without segments and without a pooler, half as many of them."""

from __future__ import annotations

from dataclasses import replace

from ..core.config.model import Encoder
from .encoder_pages import OURS, embeddings, encoder, read_heads, weight_and_bias
from .ends import ANSWERS, CHOICE, LABELS, TOKENS, head_name, head_of, label_layers, write_dropout
from .keys import ConfigWords, Key, Section, key, keys
from .names import Table, rules
from .recipe import ConfigReader, Settings, page

# what each head calls the dropout before its labels, and transformers' default
DROPOUTS = {
    LABELS: ("seq_classif_dropout", 0.2),
    CHOICE: ("seq_classif_dropout", 0.2),
    ANSWERS: ("qa_dropout", 0.1),
    TOKENS: ("dropout", 0.1),
}
KEYS = (
    *keys(
        dim=768,
        n_layers=6,
        n_heads=12,
        hidden_dim=3072,
        max_position_embeddings=512,
        vocab_size=30_522,
        activation="gelu",
        dropout=key("dropout attention_dropout", 0.1, "dropout"),
        initializer_range=0.02,
    ),
    # how the table of positions starts; the files hold it either way
    Key("", "", lambda raw: raw.flag("sinusoidal_pos_embds", False)),
)


def read_ends(raw: ConfigReader, model: Encoder) -> Encoder:
    """The model with the head that its architecture names."""
    word, usual = DROPOUTS.get(head_of(raw), ("dropout", 0.0))
    dropout = raw.number(word, usual, most=0.99)
    model = read_heads(raw, model, "relu", None, dropout)
    head = model.token_head
    return model if head is None else replace(model, token_head=replace(head, dropout=dropout))


def write_ends(model: Encoder) -> Settings:
    """The dropout before labels; of tokens, it is the blocks'."""
    word, _ = DROPOUTS.get(head_name(model), ("dropout", 0.0))
    return {} if word == "dropout" else write_dropout(model, word)


_LAYER = {
    "attn.q": "attention.q_lin",
    "attn.k": "attention.k_lin",
    "attn.v": "attention.v_lin",
    "attn.out": "attention.out_lin",
    "attn_norm": "sa_layer_norm",
    "ffn.up": "ffn.lin1",
    "ffn.down": "ffn.lin2",
    "ffn_norm": "output_layer_norm",
}
NAMES = {"head.transform": "vocab_transform", "head.norm": "vocab_layer_norm"}
PROJ, TABLE = "vocab_projector", "distilbert.embeddings.word_embeddings.weight"


def table(model: Encoder) -> Table:
    """The names of the weights; how the layer of labels is called depends on the head."""
    labels = {"pool.transform": "pre_classifier", "pool.proj": "classifier"}
    all_rules = (
        *embeddings("distilbert"),
        *rules(_LAYER, "distilbert.transformer.layer.{i}.", OURS),
        *rules({**NAMES, "head.proj": PROJ, **label_layers(model, labels)}),
    )
    unused = weight_and_bias(*NAMES.values(), PROJ, "pre_classifier", "classifier")
    tied = getattr(model.head, "tied", False)
    copies = ((f"{PROJ}.weight", TABLE),) if tied else ()
    return Table(
        all_rules,
        (*unused, "distilbert.embeddings.position_ids"),
        copies,
        prefix="distilbert.",
    )


page(
    "distilbert",
    words=ConfigWords(encoder(), (*KEYS, Section(read_ends, write_ends))),
    weights=table,
)
