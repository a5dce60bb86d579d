"""A tokenizer written as `transformers` opens it: tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path

from ..core import files
from ..core.tokenizer.tokenizer import Tokenizer
from .tokenizer_forms import around


def framed_json(tokenizer: Tokenizer) -> str:
    """The tokenizer.json of one that puts around a text and a pair what ``tokenizer`` does, for a model
    of labels, which learned from such texts."""
    spec = tokenizer.spec
    if (tokenizer.bos, tokenizer.eos) != (None, None):
        texts = {-1: "A", -2: "B"}
        rows = tokenizer.framed([[-1]]), tokenizer.framed([[-1], [-2]])
        templates = [
            [
                {"SpecialToken": {"id": tokenizer.token(id), "type_id": kind}}
                if id >= 0
                else {"Sequence": {"id": texts[id], "type_id": kind}}
                for id, kind in zip(*row, strict=True)
            ]
            for row in rows
        ]
        names = {id: tokenizer.token(id) for id in rows[1][0] if id >= 0}
        tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()}
        single, pair = templates
        processor = {"single": single, "pair": pair, "special_tokens": tokens}
        spec = {**spec, "post_processor": {"type": "TemplateProcessing", **processor}}
    return json.dumps(spec, ensure_ascii=False)


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json as `transformers` opens them: both or neither.

    There too a text then begins with bos, if it does here, or stands between cls and sep.
    """
    spec, bos = tokenizer.spec, tokenizer.roles["bos"]
    framed = bool(spec.get("post_processor"))
    if not framed and tokenizer.cls is not None and tokenizer.sep is not None:
        processor = around(tokenizer.cls, tokenizer.sep, tokenizer.token)
        spec = {**spec, "post_processor": processor}
    elif not framed and tokenizer.bos not in (None, tokenizer.eos):
        opening = {"SpecialToken": {"id": bos, "type_id": 0}}
        texts = [{"Sequence": {"id": name, "type_id": id}} for id, name in enumerate("AB")]
        processor = {
            "type": "TemplateProcessing",
            "single": [opening, texts[0]],
            "pair": [opening, texts[0], opening, texts[1]],
            "special_tokens": {bos: {"id": bos, "ids": [tokenizer.bos], "tokens": [bos]}},
        }
        spec = {**spec, "post_processor": processor}
    contents = {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False),
        "tokenizer_config.json": settings(tokenizer),
    }
    if tokenizer.chat_template is not None:
        contents["chat_template.jinja"] = tokenizer.chat_template
    if not folder.exists():
        with files.write_folder(folder) as beside:
            for name, text in contents.items():
                (beside / name).write_text(text, encoding="utf-8")
        return
    with files.temporary(folder, ".saving-") as beside, files.explain_errors(folder):
        for name, text in contents.items():
            (beside / name).write_text(text, encoding="utf-8")
            files.sync(beside / name)
        for name in contents:
            (beside / name).replace(folder / name)
        files.sync(folder)


def settings(tokenizer: Tokenizer, segments: bool = False) -> str:
    """The text of a tokenizer_config.json; with ``segments`` its tokenizer gives those of a pair."""
    names = ["input_ids", "token_type_ids", "attention_mask"]
    table = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": name for role, name in tokenizer.roles.items()},
        **({"model_input_names": names} if segments else {}),
    }
    return json.dumps(table, indent=1, ensure_ascii=False) + "\n"
