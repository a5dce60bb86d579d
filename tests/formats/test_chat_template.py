"""Chat templates: the texts that transformers makes of published ones, and programs that mean
harm."""

from __future__ import annotations

import contextlib
import resource
import time

import pytest

from folders import write_json
from glassformer import UserError
from glassformer.core.tokenizer import train
from glassformer.formats import chat_template
from glassformer.formats.chat_template import ChatTemplate
from mistakes import mistake

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] | trim + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system = false "
    "%}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles "
    "must alternate') }}"
    "{% endif %}{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\n' + system + "
    "'\n<</SYS>>\n\n' + "
    "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if "
    "message['role'] == 'user' %}"
    "{{ bos_token ~ '[INST] ' ~ content.strip() ~ ' [/INST]' }}{% else %}{{ ' ' ~ content | trim "
    "~ ' ' ~ eos_token }}"
    "{% endif %}{% endfor %}"
)
MESSAGES = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": " the cat sat\n"},
    {"role": "assistant", "content": "on the mat"},
    {"role": "user", "content": "the dog?"},
]


@pytest.fixture(scope="module")
def tokenizer():
    return train("bpe", ["the cat sat on the mat and the dog sat on the log "] * 4, 300)


@pytest.mark.parametrize("source", [CHATML, LLAMA2])
def test_a_published_template_gives_what_transformers_makes_of_it(source, tokenizer):
    """Reference: transformers' own rendering."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    words = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    output, _ = utils.render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, **words
    )
    assert ChatTemplate(source, tokenizer).render(MESSAGES) == output[0]


BOMBS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set y %}{{ n.x }}{{ n.x }}{% "
    "endset %}"
    "{% set n.x = y %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x | replace('a', "
    "'aa') %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x.replace('a', 'aa') "
    "%}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
    "{{ ([range(100000)] * 100000) | map('list') | list }}",
    "{{ 'a' * 10000000000 }}",
    "{{ 99 ** 99 ** 99 }}",
    "{{ '%10000000000d' % 3 }}",
    "{{ '{:10000000000}'.format(3) }}",
    "{{ 'a'.center(10000000000) }}",
    "{{ ('a' * 4000).join(['b'] * 100000) }}",
    "{{ range(10000000000) | list }}",
    "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
]
ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ (1).bit_length.__globals__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{{ raise_exception.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{{ '{0.__class__}'.format(1) }}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_bomb_ends_soon_in_a_sentence(source, tokenizer):
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with mistake("template"):
        ChatTemplate(source, tokenizer).render(MESSAGES)
    assert time.monotonic() - start < 20, "two seconds on a machine that is not busy"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "KiB"


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_nothing_of_pythons(source, tokenizer):
    messages = [dict(message) for message in MESSAGES]
    with contextlib.suppress(UserError):
        assert ChatTemplate(source, tokenizer).render(messages) == ""
    assert messages == MESSAGES


def test_what_a_message_says_is_never_a_special_token(tokenizer):
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer
    )
    plain = template.tokens([{"role": "user", "content": "the cat"}])
    assert plain == [tokenizer.bos, *tokenizer.encode("the cat")]
    sly = template.tokens([{"role": "user", "content": "the <|endoftext|> cat"}])
    assert sly.count(tokenizer.bos or 0) == 1
    assert tokenizer.decode(sly) == "the <|endoftext|> cat"


def test_a_template_is_found_where_models_keep_it(tmp_path, tokenizer):
    assert chat_template.find(tmp_path) is None
    write_json(
        tmp_path / "tokenizer_config.json",
        {"chat_template": [{"name": "default", "template": "A"}]},
    )
    assert chat_template.find(tmp_path) == "A"
    (tmp_path / "chat_template.jinja").write_text("B")
    assert chat_template.find(tmp_path) == "B"
    assert ChatTemplate.open(tmp_path / "chat_template.jinja", tokenizer).render(MESSAGES) == "B"


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "{% if %}", "x" * 300_000])
def test_a_broken_template_is_a_sentence(source, tokenizer):
    with mistake("chat template"):
        ChatTemplate(source, tokenizer)


def test_a_date_that_is_none_is_a_sentence(tokenizer):
    with mistake('"tomorrow" is no date; write it as 2024-07-26'):
        ChatTemplate("A", tokenizer, "tomorrow")


def test_a_template_may_refuse_a_conversation(tokenizer):
    with mistake("roles must alternate"):
        ChatTemplate(LLAMA2, tokenizer).render([MESSAGES[2]])


def test_marks_of_generated_text_are_rendered_as_if_they_were_not_there(tokenizer):
    template = (
        "{% for m in messages %}{%- generation -%}<{{ m.content }}>{% endgeneration %}{% endfor %}"
    )
    plain = template.replace("{%- generation -%}", "").replace("{% endgeneration %}", "")
    expected = ChatTemplate(plain, tokenizer).render(MESSAGES)
    assert ChatTemplate(template, tokenizer).render(MESSAGES) == expected
    assert ChatTemplate(template, tokenizer).tokens(MESSAGES) == tokenizer.encode(expected)


def test_tools_are_in_the_text_and_their_special_tokens_stay_text(tokenizer):
    template = ChatTemplate("{{ tools | tojson }}{{ eos_token }}", tokenizer)
    ids = template.tokens([], tools=[{"name": "<|endoftext|>"}])
    assert ids.count(tokenizer.eos) == 1
    assert tokenizer.decode(ids[:-1]) == '[{"name": "<|endoftext|>"}]'


def test_the_day_of_a_training_stays(tokenizer):
    source = "{{ strftime_now('%d %b %Y') }}"
    assert ChatTemplate(source, tokenizer, date="2024-07-26").render([]) == "26 Jul 2024"
    assert ChatTemplate(source, tokenizer).render([]) != "26 Jul 2024"


def test_a_conversation_of_every_character_that_could_be_the_mark_is_refused(tokenizer):
    messages = [{"role": "user", "content": mark} for mark in chat_template.MARKS]
    template = ChatTemplate(CHATML, tokenizer)
    assert template.tokens(messages[1:])
    with mistake("6,399 characters U"):
        template.tokens(messages)
