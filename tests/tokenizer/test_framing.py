"""What opens and closes a text, for tokenizers with bos, with eos alone, with padding alone, with
BERT's specials."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers

import tiny
from glassformer.core.tokenizer import framing
from glassformer.core.tokenizer import train as train_tokenizer
from glassformer.formats.tokenizer_forms import from_json
from mistakes import mistake


def tokenizer_with(*specials):
    return train_tokenizer("char", ["abc "], specials=specials)


def test_a_text_opens_with_bos_and_where_there_is_none_with_the_end_of_the_one_before():
    pair = tokenizer_with("<s>", "</s>")
    alone = tokenizer_with("<|endoftext|>")
    assert (framing.document_start(pair), framing.text_start(pair)) == (
        pair.id("<s>"),
        pair.id("<s>"),
    )
    assert framing.text_start(alone) == alone.eos == alone.id("<|endoftext|>")
    assert framing.document_start(alone) is None


def test_a_target_opens_with_bos_or_as_in_t5_with_the_padding_and_closes_with_eos():
    pair = tokenizer_with("<s>", "</s>", "<pad>")
    t5 = tokenizer_with("<pad>", "</s>")
    assert (framing.decoder_start(pair), framing.end_of_target(pair)) == (
        [pair.id("<s>")],
        pair.id("</s>"),
    )
    assert framing.decoder_start(t5) == [t5.id("<pad>")]
    bart = replace(tiny.t5(), start=(2, 5))  # the config says more than the tokenizer
    assert framing.decoder_start(t5, bart) == framing.target_start(None, bart) == [2, 5]
    assert framing.target_start(None, tiny.t5()) == []
    a = t5.id("a")
    b = t5.id("b")
    assert framing.source(t5, [a, b]) == [a, b, t5.id("</s>")]
    assert framing.source(t5, []) == []


@pytest.mark.parametrize("single", ["<s> $A </s>", "<de> $A </s>", "$A </s> <de>", "$A </s>"])
def test_a_source_is_framed_as_the_tokenizers_file_says(single):
    """BART's, NLLB's, mBART's and T5's frames, beside the library that the files are written for."""
    plain = tokenizer_with("<s>", "</s>", "<de>")
    named = [(name, plain.id(name)) for name in ("<s>", "</s>", "<de>")]
    library = tokenizers.Tokenizer.from_str(plain.to_json())
    library.post_processor = tokenizers.processors.TemplateProcessing(single, None, named)
    framed = from_json(library.to_str())
    assert framing.source(framed, framed.encode("a b")) == library.encode("a b").ids
    assert framing.source(framed, []) == []
    assert framing.source(plain, [4]) == [4, plain.eos]  # the file says nothing: eos alone


def test_a_decoders_question_ends_with_sep_or_with_what_opens_a_target():
    pair = tokenizer_with("<s>", "</s>")
    bert = tokenizer_with("<s>", "</s>", "[SEP]")
    a = pair.id("a")
    start = pair.id("<s>")
    assert framing.question(pair, [a]) == [start, a, start]
    assert framing.question(bert, [bert.id("a")]) == [
        bert.id("<s>"),
        bert.id("a"),
        bert.id("[SEP]"),
    ]


def test_a_tokenizer_without_specials_is_refused_in_a_sentence():
    plain = tokenizer_with()
    with mistake("end-of-text token to end a target"):
        framing.end_of_target(plain)
    with mistake("no bos and no pad token"):
        framing.decoder_start(plain)
