"""``glassformer embed``: one vector for each text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .common import count_noun, progress_counter
from .options import Edits, ModelOptions, Texts
from .parsing import CommandOutput, Count
from .sources import Prompts

EXAMPLES = (
    'glassformer embed tiny-encoder "a cat" "a dog" "a train"',
    "glassformer embed tiny-encoder --prompts texts.txt --out vectors.safetensors",
)


def run(
    options: ModelOptions,
    text: Texts = (),
    *,
    prompts: Prompts = (),
    batch: Count = 32,
    out: str | None = None,
    prompt_name: str | None = None,
    truncate: bool = False,
    edit: Edits = (),
) -> Iterator[CommandOutput]:
    """Embeds each text as one vector.

    text TEXT: one text or several; - is standard input, one text
    out FILE: save the vectors as "vectors" (texts, width) in a .safetensors file; - is standard
        output
    prompt_name NAME: put the model's prompt of this name before each text, such as query
    json: the vectors as JSON, a text a line
    """
    import torch

    from ..core import files
    from ..tasks import predictions

    texts = [*text, *prompts]
    vectors = predictions.embed(
        *options.load_with_tokenizer(),
        texts,
        prompt_name=prompt_name,
        truncate=truncate,
        batch=batch,
        progress=progress_counter("texts"),
        edits=edit,
    )
    if out:
        from safetensors.torch import save

        content = save({"vectors": vectors.contiguous()})
        if out == "-":
            sys.stdout.buffer.write(content)
            return
        files.write(Path(out), content)
        print(f"{count_noun(len(texts), 'vector')} of {vectors.shape[1]} numbers in {out}")
        return
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    cosines = (unit @ unit.T).tolist()
    for sentence, vector, row in zip(texts, vectors.tolist(), cosines, strict=True):
        first = " ".join(f"{number:.4f}" for number in vector[:6])
        lines = [sentence, f"  {len(vector)} numbers: {first} ..."]
        if len(texts) > 1:
            similar = " ".join(f"{cosine:.4f}" for cosine in row)
            lines.append(f"  cosine with each text: {similar}")
        yield CommandOutput({"text": sentence, "vector": vector}, lines)
