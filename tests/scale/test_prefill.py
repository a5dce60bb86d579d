"""A prompt read by several processes is the prompt read by one: logits, cache, what is generated,
the command."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tiny
from glassformer import generation, tokenizer
from glassformer.cli import main
from glassformer.core.errors import UserError
from glassformer.core.nn import Cache, build_model
from glassformer.formats import store
from glassformer.scale.mesh import Mesh
from glassformer.scale.parallel import Parallel
from glassformer.scale.prefill import prefill
from glassformer.scale.ring import Ring
from many import environment, free_port
from tiny import ALL, DECODERS, STATES, tokens

READ = [name for name in DECODERS if name not in {"gru", "lstm"} | STATES]


def compare(mesh, padded):
    """The largest difference of the prompt's last logits and of those of five tokens after it, for
    each family."""
    ring = Ring(Mesh(Parallel(data=1, context=mesh.size), mesh.rank).group("context"))
    result = {}
    for name in READ:
        model = build_model(DECODERS[name], seed=1, dtype=torch.float64).eval()
        second_tokens = tokens(2, 27)
        pos = None
        if padded:
            pos = torch.arange(22).expand(2, -1) - torch.tensor([[0], [6]])
            pos = pos.clamp(min=-1)
        prompt = second_tokens[:, :22]
        engine = model.engine
        logits, cache = prefill(model, prompt, pos, ring, keep=mesh.rank == 0)
        assert model.engine == engine
        assert all(not module._forward_pre_hooks for module in model.modules())
        with torch.no_grad():
            alone = Cache(model.config)
            expected = [model(prompt, pos=pos, cache=alone, logits="last").logits[:, -1].float()]
            got = [logits]
            for at in range(22, 27):
                if mesh.rank == 0:
                    after = None if pos is None else (pos[:, -1:] + 1 + at - 22)
                    step = second_tokens[:, at : at + 1]
                    expected.append(model(step, pos=after, cache=alone).logits[:, 0])
                    got.append(model(step, pos=after, cache=cache).logits[:, 0])
        result[name] = max(float((a - b).abs().max()) for a, b in zip(got, expected, strict=True))
    return result


@pytest.mark.parametrize("padded", [False, True])
def test_every_decoder(two, padded):
    for answer in two.call(compare, padded=padded):
        assert len(answer) == len(READ) and max(answer.values()) < 1e-5, answer


def generated(mesh):
    """Texts generated after prompts of two lengths, and the refusals."""
    ring = Ring(Mesh(Parallel(data=1, context=mesh.size), mesh.rank).group("context"))
    model = tiny.model("gemma2")

    def reader(*args):
        return prefill(*args, ring)

    prompts = [tokens(1, 30)[0].tolist(), tokens(1, 21)[0].tolist()]
    options = {"max_new": 12, "seed": 3, "samples": 2}
    actual_tokens = generation.generate(model, None, prompts, reader=reader, **options).run().tokens
    alone = generation.generate(model, None, prompts, **options).run().tokens
    refused = []
    for name, cfg in (("gru", DECODERS["gru"]), ("t5", ALL["t5"])):
        try:
            start = {"start": 1} if name == "t5" else {}
            generation.generate(
                tiny.model(cfg), None, prompts[0], reader=reader, max_new=2, **start
            ).run()
        except UserError as error:
            refused.append(str(error))
    return [actual_tokens == alone, refused]


def test_what_is_generated_and_refused(two):
    for repeated, refused in two.call(generated):
        assert repeated
        assert "recurrent" in refused[0]
        assert "plain prompts of a decoder" in refused[1]


@pytest.mark.parametrize(
    "more, code",
    [
        (["that is the question"], 0),
        pytest.param(["to", "--edit", "no"], 2, marks=pytest.mark.slow),
        pytest.param(["to", "--most-new", "no"], 2, marks=pytest.mark.slow),
        pytest.param(["to", "--top-p", "9"], 2, marks=pytest.mark.slow),
    ],
)
def test_the_command(tmp_path, capsys, more, code):
    model = tiny.model("llama")
    chars = tokenizer.train("char", ["to be or not to be, that is the question"])
    store.save(model, tmp_path / "m", chars, layout="glassformer")
    words = ["generate", str(tmp_path / "m"), "--max-new", "5", "--temperature", "0", *more]
    command = [sys.executable, "-m", "glassformer", *words]
    port = free_port()
    process = [
        subprocess.Popen(command, env=environment(rank, 2, port), stdout=-1, stderr=-1, text=True)
        for rank in range(2)
    ]
    answers = [(*item.communicate(timeout=120), item.returncode) for item in process]
    assert main(words) == code
    alone = capsys.readouterr()
    assert answers == [(alone.out, alone.err, code), ("", "", code)]
    assert (len(alone.out) > 3) is (code == 0)
