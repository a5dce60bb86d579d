"""``glassformer why`` of a model that is not ours: from a file of the user's, or by the library transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from glassformer.cli import main
from glassformer.sight.recording import outside
from mistakes import SENTENCES, mistake

CODE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10)

    def forward(self, ids):
        hidden = self.embed(ids).tanh()
        return self.head(hidden)

def make():
    return Tiny()

def with_words():
    return Tiny(), lambda text: torch.tensor([[len(word) for word in text.split()]])

def with_options():
    return Tiny(), lambda text: {"ids": torch.tensor([[int(text)]])}

def word():
    return "no module"

def broken():
    return Tiny(), lambda text: torch.ones(2)

number = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def test_a_model_of_ones_own_opens(file, capsys):
    assert main(["why", "--model-file", f"{file}:make", "5 3 8", "output[0,2,7]", "--up", "2"]) == 0
    text = capsys.readouterr().out
    assert "output[0,2,7] = " in text
    assert "head.weight[7," in text
    assert "hidden[0,2," in text
    assert "model.py:14" in text  # the line of the user's file
    assert "Row 8 of the table embed.weight" in text
    assert "+0 " not in text


def test_without_an_address_the_pass_is_listed(file, capsys):
    assert main(["why", "--model-file", f"{file}:make", "5 3 8"]) == 0
    text = capsys.readouterr().out
    assert "Tiny" in text
    assert "hidden" in text
    assert "linear" in text
    assert "1 x 3 x 10" in text
    assert main(["why", "--model-file", f"{file}:make", "5 3 8", "hidden"]) == 0
    assert capsys.readouterr().out.strip() == "hidden: 1 x 3 x 4"


def test_the_function_may_read_the_text(file, capsys):
    for function, text in (("with_words", "to be or"), ("with_options", "2")):
        address = ["why", "--model-file", f"{file}:{function}", text, "output[0,0,1]", "--json"]
        assert main(address) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["address"] == "output[0,0,1]"
        assert record["kind"] == "linear"
        total = sum(term["value"] for term in record["terms"]) + record["others"][0]["value"]
        assert total == pytest.approx(record["value"], abs=1e-6)


@pytest.mark.parametrize("name, text, words", SENTENCES["why"])
def test_mistakes_are_sentences(file, name, text, words, capsys):
    assert main(["why", "--model-file", str(file.parent / name), text, "output[0,0,0]"]) != 0
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_an_address_that_is_not_there(file, capsys):
    assert main(["why", "--model-file", f"{file}:make", "5", "hiden[0,0,0]"]) != 0
    assert "hidden" in capsys.readouterr().err


def test_the_bytes_of_a_trace_are_bounded(file: Path) -> None:
    trace = outside.from_file(f"{file}:make").trace("5 3 8", keep=0)
    assert trace.kept_bytes == 0
    assert trace.explain("hidden[0,2,1]").kind == "tanh"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with its tokenizer, as transformers saves them."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    import tiny_transformers

    path = tmp_path_factory.mktemp("llama")
    words = ["<unk>", "the", "cat", "sat", "on", "mat"]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>"
    ).save_pretrained(path)
    tiny_transformers.build("Llama").save_pretrained(path)
    return path


def test_a_folder_of_transformers_opens(folder, capsys):
    why = ["why", "--with-transformers", str(folder), "the cat sat"]
    assert main([*why, "logits[0,2,5]", "--up", "1"]) == 0
    text = capsys.readouterr().out
    assert "logits[0,2,5] = " in text
    assert "modeling_llama.py" in text
    assert main([*why, "model.layers.0.self_attn.query_states"]) == 0
    assert "1 x 4 x 3 x 8" in capsys.readouterr().out


def test_tokens_of_a_model_of_transformers_are_asked_for_by_their_words(folder, capsys):
    """By ``sight/word_places.py``, which knows sides and tokenizer alone."""
    why = ["why", "--with-transformers", str(folder), "the cat sat"]
    assert main([*why, 'logits[0,"cat","mat"]']) == 0
    text = capsys.readouterr().out
    assert text.startswith("logits[0,1,5] = ") and 'token 1 "·cat", word 5 "·mat"' in text
    assert main([*why, 'model.layers.0.self_attn.pattern[0,1,"sat","the"]']) == 0
    assert 'head 1, token 2 "·sat", key 0 "·the"' in capsys.readouterr().out
    for address, sentence in (
        ('logits[0,"dog",5]', "There are: 0 ·the, 1 ·cat, 2 ·sat."),
        ('logits["cat",1,5]', "has no words along row"),
        ('logits[0,1,5,"cat"]', "logits has 3 sides"),
    ):
        assert main([*why, address]) != 0
        error = capsys.readouterr().err
        assert sentence in error and "Traceback" not in error, error


def test_without_a_tokenizer_there_are_no_words(file, capsys):
    assert main(["why", "--model-file", f"{file}:make", "5 3 8", 'output[0,2,"cat"]']) != 0
    assert '"cat" needs a tokenizer' in capsys.readouterr().err


def test_folders_that_transformers_cannot_read(folder, tmp_path, capsys):
    assert main(["why", "--with-transformers", str(tmp_path), "the cat"]) != 0
    assert "config.json" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}', encoding="utf-8")
    assert main(["why", "--with-transformers", str(tmp_path), "the cat"]) != 0
    assert "NoSuchModel" in capsys.readouterr().err
    assert (
        main(
            ["why", "--with-transformers", str(folder), "the cat", "--edit", 'head_off("model", 0)']
        )
        != 0
    )
    assert "--edit" in capsys.readouterr().err


BROKEN = """
import torch
from torch import nn

def argument(x): return nn.Linear(2, 2)
def fails(): raise ValueError("no luck")
def number(): return nn.Linear(2, 2), 7
def three(): return nn.Linear(2, 2), len, 3
def text(): return nn.Linear(2, 2), lambda text: 1 / 0
def scripted(): return torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
"""


@pytest.mark.parametrize("function, sentence", SENTENCES["files of the user"])
def test_what_a_file_of_the_users_does_wrong_is_one_sentence(function, sentence, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    with mistake(sentence):
        outside.from_file(f"{path}:{function}").trace("5 3 8")


def test_a_file_that_is_no_python(tmp_path):
    (tmp_path / "broken.py").write_text("def f(:\n")
    with mistake("The model's file fails.*SyntaxError"):
        outside.from_file(f"{tmp_path / 'broken.py'}:f")


@pytest.mark.parametrize("config", [b"{bad", b'{"architectures": ["LlamaForCausalLM"]}'])
def test_a_damaged_folder_is_one_sentence(config, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_bytes(config)
    (tmp_path / "model.safetensors").write_bytes(b"\x40" * 3000)
    with mistake(r"config\.json|transformers cannot load"):
        outside.from_transformers(str(tmp_path))


def test_the_largest_number_of_a_row_opens(file, capsys):
    assert main(["why", "--model-file", f"{file}:make", "5 3 8", "output[0,2]"]) == 0
    printed = capsys.readouterr()
    numbers = outside.from_file(f"{file}:make").trace("5 3 8")["output[0,2]"]
    assert printed.err == f"The largest of these numbers is output[0,2,{numbers.abs().argmax()}].\n"
    assert printed.out.startswith(f"output[0,2,{numbers.abs().argmax()}] = ")
