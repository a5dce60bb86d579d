"""Tiny random models of the library ``transformers`` in folders, with a tokenizer of a few words."""

from __future__ import annotations

from typing import Any

import tiny_transformers

CLASSES = {
    "Llama": "LlamaForCausalLM",
    "Bert": "BertForMaskedLM",
    "T5": "T5ForConditionalGeneration",
}
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "the", "cat", "sat", "on", "a", "mat", "dog"]
WORDS += ["log", "and"]


def tokenizer():
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "[UNK]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


def saved(name, folder, with_words=True):
    """A folder as transformers saves it."""
    model: Any = tiny_transformers.build(name)
    model.save_pretrained(folder)
    if with_words:
        tokenizer().save_pretrained(folder)
    return folder
