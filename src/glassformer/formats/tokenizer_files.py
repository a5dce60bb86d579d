"""Open a published tokenizer: a file of any format, or a folder that holds one.

A folder's tokenizer_config.json says who plays bos, eos, mask and so on, and which tokens were
added later.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..core import files
from ..core.errors import UserError, nearest, need
from ..core.tokenizer.tokenizer import EXTRA, Tokenizer
from ..core.tokenizer.tokenizer_json import USUAL, Roles, Spec, ids_of
from . import byte_level, letters, sentencepiece, wordpiece
from . import gguf_tokenizer as gguf
from .generation_config import GENERATION
from .tokenizer_forms import added_token, tokenizer_of
from .wordpiece import flag

FIX = "restore or fix the file"  # what to do about broken JSON
# bytes of a tokenizer file; the largest published ones have some tens of millions
LARGEST = 1 << 30
TEMPLATE = "chat_template.jinja"
SENTENCEPIECE_T5 = "d60acb128cf7b7f2536e8f38a5b18a05535c9e14c7a355904270e15b0945ea86"
SENTINELS_T5 = 100
MERGES_OF = byte_level.FILES
CASES = ("bert-cased", "bert-uncased")
KINDS = (*byte_level.KINDS, *CASES, "t5", "deberta", "esm")
CLASSES = {"Qwen2Tokenizer": "qwen", "T5Tokenizer": "t5", "EsmTokenizer": "esm"}
"""The classes of `transformers` whose files mean something else than what they say alone, and what
that is."""
ROBERTA = ("roberta", "bart", "led", "longformer")
"""The types of models whose vocab.json and merges.txt are framed as RoBERTa's."""
PLAIN = """
PreTrainedTokenizer PythonBackend TokenizersBackend SentencePieceBackend GPT2Tokenizer RobertaTokenizer BartTokenizer
LEDTokenizer LongformerTokenizer CodeGenTokenizer BertTokenizer DistilBertTokenizer ElectraTokenizer DebertaV2Tokenizer
MobileBertTokenizer ConvBertTokenizer SqueezeBertTokenizer RetriBertTokenizer LayoutLMTokenizer LxmertTokenizer
DPRQuestionEncoderTokenizer DPRContextEncoderTokenizer DPRReaderTokenizer LlamaTokenizer GemmaTokenizer
"""
"""The classes whose files say everything, or say it together with tokenizer_config.json."""


def open(path: str | Path, *, kind: str | None = None) -> Tokenizer:
    """The tokenizer in a file or folder.

    Formats: tokenizer.json; vocab.json with merges.txt, encoder.json with vocab.bpe; tiktoken ranks
    (also as tokenizer.model); SentencePiece .model; WordPiece vocab.txt; the vocabulary in a GGUF
    file. ``kind`` (gpt2, cl100k, o200k, llama3, qwen, bert-cased, bert-uncased, t5, deberta, esm) decides
    where the file does not say; a tokenizer.json says everything. Raises UserError.
    """
    path = Path(path).expanduser()
    if kind is not None and kind not in KINDS:
        raise UserError(f'There is no kind of tokenizer "{kind}".{nearest(kind, KINDS)}')
    if files.path_kind(path) == "folder":
        path = _find(path)
    config = _settings(path.with_name("tokenizer_config.json"))
    spec, roles = _read(path, kind, config)
    roles |= _roles(config)
    _extend(spec, path.parent, config)
    tokenizer = tokenizer_of(spec, roles, str(path))
    ends = _ends(path.parent)
    tokenizer.ends = () if ends in ((), (tokenizer.eos,)) else ends
    tokenizer.chat_template = find_template(path.parent)
    return tokenizer


def find_template(folder: Path) -> str | None:
    """The template in a model's folder: a file of its own, or in tokenizer_config.json; None where
    there is none."""
    if (folder / TEMPLATE).is_file():
        return read_template(folder / TEMPLATE)
    for name in ("tokenizer_config.json", "chat_template.json"):
        if (folder / name).is_file():
            template = files.read_json(folder / name).get("chat_template")
            for entry in template if isinstance(template, list) else ():  # several, by their names
                if isinstance(entry, dict) and entry.get("name") == "default":
                    template = entry.get("template")
            if isinstance(template, str):
                return template
    return None


def read_template(path: Path) -> str:
    try:
        template = files.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read as UTF-8 text ({error}); give another chat template."
        ) from None
    need(bool(template.strip()), f"{path} is empty; give another chat template.")
    return template


def _find(folder: Path) -> Path:
    """The tokenizer's file in a folder, the most explicit format first."""
    models = ("tokenizer.model", "spiece.model", "spm.model")
    for name in ("tokenizer.json", *MERGES_OF, *models, "vocab.txt"):
        complete = name not in MERGES_OF or files.path_kind(folder / MERGES_OF[name])
        if files.path_kind(folder / name) == "file" and complete:
            return folder / name
    try:
        candidates = sorted(
            path for end in ("tiktoken", "model", "gguf") for path in folder.glob(f"*.{end}")
        )
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}); change its rights.") from None
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise UserError(
            f"{folder} holds {len(candidates)} tokenizers; name the file, such as {candidates[0]}."
        )
    raise UserError(
        f"{folder} holds no tokenizer; it needs a tokenizer.json or another published format."
    )


def _read(path: Path, kind: str | None, config: dict[str, Any]) -> tuple[Spec, Roles]:
    """The specification in one file, by the look of its content rather than by its name."""
    source = str(path)
    if _content(path, len(gguf.MAGIC)) == gguf.MAGIC:  # perhaps a whole model, which is not read
        return gguf.read_tokenizer(path)
    data = _content(path)
    vocab_of = {merges: vocab for vocab, merges in MERGES_OF.items()}
    vocab = path.with_name(vocab_of.get(path.name, path.name))
    start = data[:4096]
    is_json = start.lstrip()[:1] == b"{" and vocab == path
    if is_json:
        raw = files.json_object(data, source, FIX)
        if isinstance(raw.get("model"), dict):
            stored = raw.pop(EXTRA, None)
            return raw, dict(stored) if isinstance(stored, dict) else {}
    if vocab.name in MERGES_OF:
        file_kind = _kind(kind, byte_level.KINDS, config, vocab)
        ids = files.json_object(_content(vocab), str(vocab), FIX)
        merges = vocab.with_name(MERGES_OF[vocab.name])
        named = {token["content"] for token in _listed(vocab.parent, config).values()}
        for settings in (config, _settings(vocab.with_name("special_tokens_map.json"))):
            named |= {name for name in _roles(settings).values() if name}
        text = _text(_content(merges), str(merges))
        spec = byte_level.read_vocabulary(ids, text, file_kind, named, config, vocab)
        return _roberta(spec, config, vocab) if _model(config, vocab) in ROBERTA else spec, {}
    if is_json:
        raise UserError(
            f'{source} is JSON with no "model" and so is not a tokenizer.json; choose another file.'
        )
    if re.match(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n", start):
        file_kind = _kind(kind, byte_level.KINDS, config, path)
        return byte_level.read_ranks(data, file_kind, source), {}
    if path.suffix == ".model" or start[:1] == b"\n":
        file_kind = _kind(kind, ("t5", "deberta"), config, path)
        is_deberta = kind is None and _model(config, path) in ("deberta-v2", "debertav2")
        if is_deberta or file_kind == "deberta":
            return sentencepiece.read_deberta(data, source, config)
        is_t5 = file_kind == "t5" or hashlib.sha256(data).hexdigest() == SENTENCEPIECE_T5
        sentinels = config.get("extra_ids", SENTINELS_T5) if is_t5 else 0
        if type(sentinels) is not int or not 0 <= sentinels <= 10000:
            raise UserError(
                f'"extra_ids" in {path.with_name("tokenizer_config.json")} is not a count; fix it.'
            )
        return sentencepiece.read_tokenizer(data, source, sentinels)
    if path.suffix == ".txt":
        file_kind = _kind(kind, (*CASES, "esm"), config, path)
        if file_kind == "esm":
            return letters.read_tokenizer(_text(data, source), source), {}
        lower = None if file_kind is None else file_kind == CASES[1]
        return wordpiece.read_tokenizer(_text(data, source), lower, config, source), {}
    raise UserError(
        f"{source} is not a tokenizer of a known format; give a tokenizer.json or "
        "another published file."
    )


def _model(config: dict[str, Any], path: Path) -> str:
    """The type of model that a folder's tokenizer is for, as its class or its config names it."""
    beside = _settings(path.with_name("config.json"))
    classes = (page.get("tokenizer_class") for page in (config, beside))
    named = next((name for name in classes if name), beside.get("model_type"))
    return str(named).removesuffix("Fast").removesuffix("Tokenizer").lower()


def _roberta(spec: Spec, config: dict[str, Any], path: Path) -> Spec:
    """The specification with RoBERTa's frame, whose pairs are closed twice in the middle, and with
    its mask, which may take the spaces before it."""
    roles = {"bos": "<s>", "eos": "</s>"} | {k: v for k, v in _roles(config).items() if v}
    ids = ids_of(spec)
    if not {roles["bos"], roles["eos"]} <= ids.keys():
        return spec
    frame = {"cls": [roles["bos"], ids[roles["bos"]]], "sep": [roles["eos"], ids[roles["eos"]]]}
    usual = {"trim_offsets": True, "add_prefix_space": False}
    spec["post_processor"] = {"type": "RobertaProcessing", **frame, **usual}
    pages = (_settings(path.with_name("special_tokens_map.json")), config)
    masks = [page["mask_token"] for page in pages if isinstance(page.get("mask_token"), dict)]
    greedy = [mask.get("content") for mask in masks if mask.get("lstrip") is True]
    for token in spec["added_tokens"]:
        token["lstrip"] |= token["content"] in greedy
    return spec


def _kind(
    kind: str | None, possible: Collection[str], config: dict[str, Any], path: Path
) -> str | None:
    """The kind asked for, else the one that the folder's config implies; UserError when it cannot
    be the file's.

    Also for a class of which nobody here knows what it makes of its files: their ids alone would be
    others.
    """
    if kind is not None:
        if kind not in possible:
            raise UserError(
                f'{path} cannot be of the kind "{kind}"; choose '
                f"{', '.join(possible)} or leave it out."
            )
        return kind
    beside = _settings(path.with_name("config.json"))
    name = config.get("tokenizer_class") or beside.get("tokenizer_class")
    if name is None and path.name.startswith("sentencepiece.bpe"):
        name = "of fairseq, by its name,"
    plain_name = str(name).removesuffix("Fast")
    if name is None or plain_name in PLAIN.split():
        return None
    implied = CLASSES.get(plain_name)
    if implied in possible or (implied is not None and path.suffix == ".tiktoken"):
        return implied if implied in possible else None
    raise UserError(
        f"{path} is for the class {ascii(plain_name)[1:-1][:100]}, whose ids are not the file's "
        f"alone; give its tokenizer.json, or say what it is by kind= ({', '.join(possible)})."
    )


def _content(path: Path, first: int | None = None) -> bytes:
    """The file's bytes, or the first of them."""
    need(
        files.path_kind(path) != "other", f"{path} is not a file that holds a tokenizer; give one."
    )
    try:
        if first is not None:
            with path.open("rb") as file:
                return file.read(first)
        need(
            path.stat().st_size <= LARGEST,
            f"{path} is too large to be a tokenizer; choose another file.",
        )
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); check the path.") from None
    need(bool(data.strip()), f"{path} is empty; restore the file.")
    return data


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{source} is not UTF-8 text (byte {error.start}); restore the file."
        ) from None


# ------------------------------------------------------------------------ tokenizer_config.json


def _settings(path: Path) -> dict[str, Any]:
    return (
        files.json_object(_content(path), str(path), FIX) if files.path_kind(path) == "file" else {}
    )


def _roles(config: dict[str, Any]) -> Roles:
    """Token of each role by the config; BERT's name for bos is cls and for eos sep."""
    roles: Roles = {}
    for role in USUAL:
        alias = {"bos": "cls", "eos": "sep"}.get(role, role)
        for key in (f"{alias}_token", f"{role}_token"):
            token = config.get(key)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) or (token is None and key in config):
                roles[role] = token or roles.get(role)
    return roles


def _ends(folder: Path) -> tuple[int, ...]:
    """The ids that end what the folder's model writes: its generation_config.json's, else its
    config.json's."""
    for name in (GENERATION, "config.json"):
        ids = _settings(folder / name).get("eos_token_id")
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        need(
            all(type(id) is int for id in ids),
            f'"eos_token_id" in {folder / name} is not an id nor a list of ids; fix it.',
        )
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()


def _listed(folder: Path, config: dict[str, Any]) -> dict[int, Spec]:
    """The tokens that a folder lists beside its vocabulary, by their ids."""
    added = _settings(folder / "added_tokens.json").items()
    listed = {id: added_token(id, text, special=False) for text, id in added if type(id) is int}
    table = config.get("added_tokens_decoder")
    for key, token in table.items() if isinstance(table, dict) else ():
        name = token.get("content") if isinstance(token, dict) else None
        if re.fullmatch("[0-9]{1,18}", key) and isinstance(name, str):
            usual = added_token(int(key), name, special=False)
            rules = {
                rule: flag(token, rule, False) for rule, value in usual.items() if value is False
            }
            listed[int(key)] = usual | rules
    return listed


def _extend(spec: Spec, folder: Path, config: dict[str, Any]) -> None:
    """Add the tokens that a folder lists beside its vocabulary, at the ids it gives them."""
    listed = _listed(folder, config)
    try:
        ids = ids_of(spec)
        size = operator.index(max(ids.values(), default=-1)) + 1
    except (TypeError, ValueError, AttributeError, KeyError):
        return  # the Tokenizer says what is wrong
    new = [token for _, token in sorted(listed.items()) if token["content"] not in ids]
    for id, token in enumerate(new, size):
        if token["id"] != id:
            raise UserError(
                f'{folder} adds "{token["content"]}" at {token["id"]}, and the next free id '
                f"is {id}; fix it."
            )
    spec["added_tokens"] = [*(spec.get("added_tokens") or []), *new]
