"""Conversations in files of every layout, and what is refused with its line."""

from __future__ import annotations

import json

import pytest

from folders import write_json, write_rows
from glassformer.tasks.examples import read_examples
from glassformer.tasks.objectives import Chat, Preference, Rewarded
from mistakes import mistake

HI = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def read_chat(tmp_path, *records, objective=None, name="chat.jsonl", columns=None):
    path = tmp_path / name
    write_rows(path, records)
    return read_examples(str(path), objective or Chat(), columns=columns).examples


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"messages": HI}, HI),
        ({"prompt": "Hi", "completion": "Hello!"}, HI),
        ({"prompt": HI[:1], "completion": HI[1:]}, HI),
        ({"instruction": "Hi", "input": "", "output": "Hello!"}, HI),
        (
            {"instruction": "Add.", "input": "1 1", "output": "2"},
            [{"role": "user", "content": "Add.\n\n1 1"}, {"role": "assistant", "content": "2"}],
        ),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Hello!"},
                ]
            },
            HI,
        ),
        ({"system": "Short.", "messages": HI}, [{"role": "system", "content": "Short."}, *HI]),
        ({"messages": json.dumps(HI)}, HI),
        ({"messages": [*HI, {"role": "user", "content": "Bye"}]}, HI),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, HI[1]]},
            HI,
        ),
        (
            {"messages": [HI[0], {**HI[1], "tool_calls": None, "name": None}]},
            HI,
        ),
    ],
)
def test_every_layout_is_one_conversation(record, messages, tmp_path):
    (example,) = read_chat(tmp_path, record)
    (conversation,) = example.conversations
    assert list(conversation.messages) == messages


def test_arguments_of_a_call_are_an_object(tmp_path):
    messages = [HI[0], {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    (example,) = read_chat(tmp_path, {"messages": messages, "tools": json.dumps([CALL])})
    (conversation,) = example.conversations
    assert conversation.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert conversation.messages[1]["content"] == ""
    assert conversation.tools == [CALL]


def test_columns_have_other_names(tmp_path):
    record = {"dialogue": "A long talk.", "summary": "Talk."}
    columns = {"prompt": "dialogue", "completion": "summary"}
    (example,) = read_chat(tmp_path, record, columns=columns)
    assert [message["content"] for message in example.conversations[0].messages] == [
        *record.values()
    ]
    with mistake("line 1 has no field", "talk"):
        read_chat(tmp_path, record, columns={"prompt": "talk"})


def test_a_table_and_a_list_are_read_as_lines_are(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    records = [{"messages": HI}, {"messages": [*HI, {"role": "tool", "content": "x", "name": "y"}]}]
    expected = [example.conversations for example in read_chat(tmp_path, *records)]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "chat.parquet")
    write_json(tmp_path / "chat.json", records)
    for name in ("chat.parquet", "chat.json"):
        table = read_examples(str(tmp_path / name), Chat())
        assert [example.conversations for example in table] == expected


@pytest.mark.parametrize("answer", ['{"a": 1}', "[1, 2]", "[]", '[{"from": "Rome"}]', "[" * 10_000])
def test_an_answer_in_json_stays_a_text(answer, tmp_path):
    (example,) = read_chat(tmp_path, {"prompt": "Write JSON.", "completion": answer})
    assert example.conversations[0].messages[1] == {"role": "assistant", "content": answer}
    pair = {"prompt": "Write JSON.", "chosen": answer, "rejected": "no"}
    (example,) = read_chat(tmp_path, pair, objective=Preference())
    assert example.conversations[0].messages[1] == {"role": "assistant", "content": answer}


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "Go."},
        {
            "prompt": "Hi",
            "chosen": HI,
            "rejected": [HI[0], {"role": "assistant", "content": "Go."}],
        },
        {"chosen": HI, "rejected": [HI[0], {"role": "assistant", "content": "Go."}]},
        {"prompt": HI[:1], "chosen": HI[1:], "rejected": [{"role": "assistant", "content": "Go."}]},
    ],
)
def test_pairs_begin_alike(record, tmp_path):
    (example,) = read_chat(tmp_path, record, objective=Preference())
    chosen, rejected = example.conversations
    assert list(chosen.messages) == HI
    assert rejected.messages[-1]["content"] == "Go."
    assert chosen.first == rejected.first == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"messages": HI[:1]}, "no message of the assistant"),
        ({"messages": HI[1:]}, "no message of the assistant"),
        ({"messages": []}, "no message of the assistant"),
        ({"messages": [HI[0], {"role": "assistant", "content": ""}]}, "empty answer"),
        ({"prompt": "Hi", "completion": ""}, "empty answer"),
        ({"messages": [{"content": "Hi"}]}, "without a role"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is no text"),
        ({"messages": 3}, "where messages belong"),
        ({"text": "Hi"}, "holds no conversation"),
        ({"messages": HI, "tools": 3}, "tools that are no list"),
        ({"messages": HI, "tools": ["add"]}, "tools that are no list of functions"),
        ({"messages": HI, "tools": [{"function": {"name": 3}}]}, "tools that are no list"),
        ({"messages": [HI[0], {**HI[1], "tool_calls": "add"}]}, "tool_calls that are no list"),
        ({"messages": [HI[0], {**HI[1], "tool_calls": ["add"]}]}, "tool_calls that are no list"),
        ({"messages": [HI[0], {**HI[1], "tool_calls": CALL}]}, "tool_calls that are no list"),
        ({"messages": [HI[0], {**HI[1], "weight": 0.5}]}, "weight is neither 0 nor 1"),
        ({"messages": [HI[0], {**HI[1], "weight": "much"}]}, "weight is neither 0 nor 1"),
        ({"messages": [{**HI[0], "content": [{"type": "image"}]}, HI[1]]}, "content is no text"),
        ({"messages": "[" * 100_000}, "no message of the assistant"),
        ({"instruction": [], "input": "x", "output": "y"}, "no message of the assistant"),
        ({"instruction": "x", "input": 3, "output": "y"}, '"input" that is no text'),
        ({"messages": HI, "system": 3}, '"system" that is no text'),
    ],
)
def test_a_conversation_that_teaches_nothing_is_refused_with_its_line(record, message, tmp_path):
    with mistake(message, "line 2"):
        read_chat(tmp_path, {"messages": HI}, record)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "Hi", "chosen": "A", "rejected": "A"}, "the same text as chosen"),
        ({"prompt": "Hi", "chosen": "A"}, 'no "rejected"'),
        ({"chosen": "A", "rejected": "B"}, 'no "prompt"'),
        ({"prompt": "Hi", "chosen": "A", "rejected": ""}, "empty answer"),
        ({"prompt": "Ho", "chosen": HI, "rejected": [*HI, *HI]}, "answers do not begin with"),
    ],
)
def test_a_pair_without_a_difference_is_refused_with_its_line(record, message, tmp_path):
    good = {"prompt": "Hi", "chosen": "A", "rejected": "B"}
    with mistake(message, "line 2"):
        read_chat(tmp_path, good, record, objective=Preference())


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "no.json").write_text('{"messages": []}')
    with mistake("not a list of objects"):
        read_examples(str(tmp_path / "no.json"), Chat())
    (tmp_path / "no.jsonl").write_text("")
    with mistake("holds no conversations"):
        read_examples(str(tmp_path / "no.jsonl"), Chat())
    with mistake("Conversations are one file"):
        read_examples({"messages": "a"}, Chat())


SYSTEM = {"role": "system", "content": "Short."}
OWN = {"role": "system", "content": "Mine."}
SHAREGPT = [{"from": "human", "value": "Bye"}, {"from": "gpt", "value": "No"}]


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"system": "Short.", "messages": [OWN, *HI]}, [OWN, *HI]),
        ({"system_prompt": "Short.", "prompt": "Hi", "completion": "Hello!"}, [SYSTEM, *HI]),
        ({"instruction": "Hi", "input": "  ", "output": "Hello!"}, HI),
        ({"messages": HI, "conversations": SHAREGPT}, HI),
        ({"messages": f"  {json.dumps(HI)}"}, HI),
        ({"messages": [{**HI[0], "content": ["H", {"text": "i"}]}, HI[1]]}, HI),
        ({"messages": [{"role": "assistant", "from": "human", "value": "Hi"}, HI[1]]}, HI),
    ],
)
def test_the_nearest_field_counts(record, messages, tmp_path):
    (example,) = read_chat(tmp_path, record)
    (conversation,) = example.conversations
    assert list(conversation.messages) == messages
    assert conversation.first == 1 and conversation.tools is None


def test_roles_of_other_files_have_our_names(tmp_path):
    names = ("human", "gpt", "observation", "model", "tool_response", "gpt")
    turns = [{"from": name, "value": "x"} for name in names]
    (example,) = read_chat(tmp_path, {"conversations": turns, "tools": []})
    (conversation,) = example.conversations
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert conversation.tools is None


def test_an_answer_may_be_thoughts_or_calls_alone(tmp_path):
    """A call without arguments has none; what is null in a list is left out, too."""
    thought = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "strict": None}}]}
    (example,) = read_chat(tmp_path, {"messages": [HI[0], thought, HI[0], call]})
    (conversation,) = example.conversations
    assert conversation.messages[1] == thought
    function = {"name": "add", "arguments": {}}
    assert conversation.messages[3]["tool_calls"] == [{"function": function}]


def test_a_list_of_roles_without_contents_is_a_text(tmp_path):
    (example,) = read_chat(tmp_path, {"prompt": "Who?", "completion": '[{"role": "user"}]'})
    assert example.conversations[0].messages[1]["content"] == '[{"role": "user"}]'


def test_a_column_takes_the_place_of_a_field(tmp_path):
    record = {"prompt": "x", "question": "Hi", "completion": "Hello!"}
    (example,) = read_chat(tmp_path, record, columns={"prompt": "question"})
    assert list(example.conversations[0].messages) == HI


@pytest.mark.parametrize(
    ("prompt", "before"),
    [("Hi", [SYSTEM, HI[0]]), ([OWN, HI[0]], [OWN, HI[0]]), ([*HI, HI[0]], [SYSTEM, *HI, HI[0]])],
)
def test_a_pair_is_answered_behind_its_prompt(prompt, before, tmp_path):
    record = {"system": "Short.", "prompt": prompt, "chosen": "A", "rejected": "B"}
    (example,) = read_chat(tmp_path, record, objective=Preference())
    for side, text in zip(example.conversations, "AB", strict=True):
        assert list(side.messages) == [*before, {"role": "assistant", "content": text}]
        assert side.first == len(before)
    assert example.second == example.conversations[1].text
    silent = {**record, "prompt": [*HI, HI[0]], "rejected": [{"role": "tool", "content": "B"}]}
    with mistake("no message of the assistant that answers"):
        read_chat(tmp_path, silent, objective=Preference())


def test_a_prompt_is_answered_by_the_model(tmp_path):
    """A reward sees the whole record."""
    records = [
        {"system": "Short.", "prompt": "Hi", "answer": 3},
        {"messages": [OWN, HI[0]], "prompt": "x"},
    ]
    first, second = read_chat(tmp_path, *records, objective=Rewarded())
    assert list(first.conversations[0].messages) == [SYSTEM, HI[0]]
    assert list(second.conversations[0].messages) == [OWN, HI[0]]
    assert (first.second, second.second) == ("3", None)
    assert [example.conversations[0].record for example in (first, second)] == records
    for nothing in ({"messages": HI}, {"prompt": "  "}):
        with mistake("nothing to answer", "line 1"):
            read_chat(tmp_path, nothing, objective=Rewarded())
