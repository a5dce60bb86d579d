"""Which of the 75 text model types that people load most open here, each tried.

    python benchmarks/coverage.py                  every type: under a minute
    python benchmarks/coverage.py mistral opt      some
    python benchmarks/coverage.py --least 38       exits with 1 where fewer open

Each type is made tiny and random by transformers, saved, loaded by glassformer and by transformers,
and compared: logits (states of an encoder without a head) in fp32, the whole text and beside a padded
one. Then it is saved by glassformer, and transformers opens that folder. A type opens if every
difference is within 1e-5.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

TOLERANCE = 1e-5
LEAST = 69
"""How many of the types open: the tests hold the pages and the recipes to it."""
TYPES = {
    "encoders": "bert electra xlm-roberta roberta camembert distilbert mpnet deberta-v2 deberta "
    "modernbert albert esm nomic_bert new eurobert longformer jina_embeddings_v3",
    "decoders": "gpt2 llama qwen2 qwen3 qwen3_moe phi phi3 gemma gemma2 mixtral starcoder2 mistral "
    "gpt_neox gpt_neo opt bloom gptj stablelm gpt_bigcode codegen mpt falcon gemma3_text smollm3 "
    "cohere2 llama4_text olmo2 olmo3 olmoe exaone4 granite minicpm qwen2_moe phimoe gpt_oss "
    "deepseek_v2 deepseek_v3 glm4_moe minimax_m2 qwen3_next qwen3_5_text nemotron_h "
    "granitemoehybrid lfm2 mamba2 rwkv gemma3n_text gemma4_text deepseek_v4",
    "encoder-decoders": "t5 marian bart mbart m2m_100 pegasus mt5 umt5 led",
}
UNMASKED = {"rwkv"}  # transformers reads its padding as text: each row is compared alone
OUTSIDE = {"new", "jina_embeddings_v3", "minicpm"}  # transformers has no code of theirs


def names() -> dict[str, str]:
    """The name in tests/tiny_transformers.json of each type."""
    import transformers

    import tiny_transformers

    table: dict[str, str] = {}
    for name, (config, kind, _) in tiny_transformers.NAMES.items():
        cls = getattr(transformers, config, None)
        decoder = kind.endswith(("ForCausalLM", "LMHeadModel"))
        if cls is not None and not (decoder and cls.model_type in TYPES["encoders"].split()):
            table.setdefault(cls.model_type, name)
    return table


def compare(name: str) -> float:
    """Makes a type tiny and random and compares both libraries.

    Args:
        name: Its name in tests/tiny_transformers.json.

    Returns:
        The largest difference of a logit: read, padded, and written and read again.
    """
    import torch
    import transformers

    import tiny_transformers
    from glassformer.formats import store

    kind = getattr(transformers, tiny_transformers.NAMES[name][1])
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        tiny_transformers.build(name).float().save_pretrained(f"{folder}/theirs")
        reference = kind.from_pretrained(f"{folder}/theirs", attn_implementation="eager").eval()
        model, _ = store.load(f"{folder}/theirs", dtype="float32")
        store.save(model, f"{folder}/ours", layout="hf")
        settings = json.loads(Path(f"{folder}/ours/config.json").read_text())
        kind = getattr(transformers, settings["architectures"][0])  # another layout may say it too
        written = kind.from_pretrained(f"{folder}/ours", attn_implementation="eager").eval()
        ids = torch.randint(6, 90, (2, 12), generator=torch.Generator().manual_seed(3))
        full_mask = torch.ones_like(ids)
        padded = full_mask.clone()
        padded[0, slice(7, None) if reference.config.is_encoder_decoder else slice(0, 5)] = 0
        differences = [logits(written, ids, full_mask) - logits(reference, ids, full_mask)]
        for present in (full_mask, padded):
            difference = logits(model, ids, present) - logits(reference, ids, present)
            target = reference.config.is_encoder_decoder  # every row of the target is real
            differences.append(difference if target else difference[present.bool()])
        return max(float(difference.abs().max()) for difference in differences)


def logits(model: Any, ids: Any, present: Any) -> Any:
    """Logits (states where there is no head) of ours or theirs; a pair reads the first ids and writes
    others."""
    import torch

    from glassformer import config

    target = ids.flip(1)[:, :7]
    pos = present.cumsum(1) - 1
    cfg = model.config
    if isinstance(cfg, config.EncoderDecoder):
        return model(target, ids, source_pos=pos.masked_fill(present == 0, -1)).logits
    if isinstance(cfg, config.Decoder | config.Encoder):
        out = model(ids, pos=pos.masked_fill(present == 0, -1))
        return out.hidden if out.logits is None else out.logits
    if cfg.model_type in UNMASKED and not present.all():
        rows = [row[mask == 1][None] for row, mask in zip(ids, present, strict=True)]
        lines = torch.cat([logits(model, row, torch.ones_like(row)) for row in rows], 1)[0]
        return lines.new_zeros(*ids.shape, lines.shape[-1]).masked_scatter(
            present[..., None] == 1, lines
        )
    inputs = {"input_ids": ids, "attention_mask": present}
    if cfg.is_encoder_decoder:
        inputs["decoder_input_ids"] = target
    elif "position_ids" in inspect.signature(model.forward).parameters:
        inputs["position_ids"] = pos.clamp(min=0) + first_position(model)
    return model(**inputs)[0]


def first_position(model: Any) -> int:
    """The position of a text's first token: RoBERTa's children begin after the padding id, which is
    always 1 in MPNet."""
    if model.config.model_type == "mpnet":
        return 2
    roberta = ("roberta", "xlm-roberta", "camembert", "longformer", "esm")
    return model.config.pad_token_id + 1 if model.config.model_type in roberta else 0


def main() -> None:
    """Tries each type and prints a line for it, and the count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*")
    parser.add_argument("--least", type=int, default=0)
    args = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    table, total, opened = names(), 0, 0
    for group, types in TYPES.items():
        for kind in types.split():
            if args.types and kind not in args.types:
                continue
            total += 1
            try:
                if kind in OUTSIDE:
                    raise LookupError("transformers has no code of this type")
                difference = compare(table[kind])
            except Exception as error:
                sentence = str(error).partition("config.json: ")[2] or str(error)
                answer = f"{type(error).__name__}: {sentence.splitlines()[0][:90]}"
            else:
                opened += difference <= TOLERANCE
                answer = f"{'opens' if difference <= TOLERANCE else 'WRONG'} {difference:.1e}"
            print(f"{group:<17}{kind:<20}{answer}", flush=True)
    print(f"{opened} of {total}")
    sys.exit(opened < args.least)


if __name__ == "__main__":
    main()
