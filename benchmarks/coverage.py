"""Which of the 75 text model types that are downloaded most open here: a tiny random model of each,
made by transformers, is saved, loaded by Glassformer, and its logits compared.

    python benchmarks/coverage.py [TYPE ...] [--json FILE]

A row is a type: the greatest difference of two logits, or why it does not open. A type counts that
differs by at most 1e-5. The list is that of the hub's usual text models, by best knowledge of their
downloads; rough inside a group.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

# by the name of their kind in tests/tiny_transformers.json; "-": transformers has none of that name
ENCODERS = """
Bert Electra XLMRoberta Roberta Camembert DistilBert MPNet DebertaV2 Deberta ModernBert Albert Esm
NomicBert Gte EuroBert Longformer JinaEmbeddingsV3
"""
DECODERS = """
GPT2 Llama Qwen2 Qwen3 Qwen3Moe Phi Phi3 Gemma Gemma2 Mixtral Starcoder2 Mistral GPTNeoX GPTNeo OPT
Bloom GPTJ StableLm GPTBigCode CodeGen Mpt Falcon Gemma3 SmolLM3 Cohere2 Llama4 Olmo2 Olmo3 Olmoe
Exaone4 Granite MiniCPM Qwen2Moe Phimoe GptOss DeepseekV2 DeepseekV3 Glm4Moe MiniMaxM2 Qwen3Next
Qwen3_5 NemotronH GraniteMoeHybrid Lfm2 Mamba2 Rwkv Gemma3n Gemma4 DeepseekV4
"""
PAIRS = "T5 Marian Bart MBart M2M100 Pegasus MT5 UMT5 LED"
TYPES = [*ENCODERS.split(), *DECODERS.split(), *PAIRS.split()]
TOLERANCE = 1e-5


def compare(name: str) -> tuple[float | None, str]:
    """The greatest difference of two logits, or None and the reason."""
    import tiny_transformers
    from glassformer.core.errors import UserError
    from glassformer.formats import store

    if name not in tiny_transformers.NAMES:
        return None, "no tiny model of it is made here"
    reference = tiny_transformers.build(name)
    # tables of sines and cosines are parameters there, and were shaken with the others
    for weight, fresh in zip(
        reference.parameters(), type(reference)(reference.config).parameters(), strict=True
    ):
        if not fresh.requires_grad:
            weight.data.copy_(fresh.data)
    if (
        name == "Electra"
    ):  # its published models tell real tokens from others: the trunk is compared
        reference = reference.electra
    inputs = tiny_transformers.inputs(name)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        reference.save_pretrained(folder)
        try:
            model, _ = store.load(folder)
        except UserError as error:
            return None, str(error).replace(folder, "")[:110]
        source = {}
        tokens = inputs["input_ids"]
        if "decoder_input_ids" in inputs:
            source, tokens = {"source": tokens}, inputs["decoder_input_ids"]
        output, expected = model(tokens, **source), reference(**inputs)
        pair = (
            (output.logits, expected.logits)
            if hasattr(expected, "logits")
            else (output.hidden, expected.last_hidden_state)
        )
        return float((pair[0] - pair[1]).abs().max()), ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("types", nargs="*", default=TYPES)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    args = parser.parse_args()
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rows = {}
    for name in args.types:
        try:
            difference, reason = compare(name)
        except Exception as error:
            difference, reason = None, f"{type(error).__name__}: {str(error)[:80]}"
        opens = difference is not None and difference <= TOLERANCE
        rows[name] = {"opens": opens, "difference": difference, "reason": reason}
        shown = reason if difference is None else f"{difference:.1e}"
        print(f"{'yes' if opens else 'no':4}{name:18}{shown}", flush=True)
    count = sum(row["opens"] for row in rows.values())
    print(f"{count} of {len(rows)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
