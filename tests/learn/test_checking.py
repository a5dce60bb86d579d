"""Checks are honest: right by any method passes, wrong is named with its place, what is theirs
shows as theirs.

Every exercise of the catalogue stands here with its usual slips; the worker and the exercises run
through a Checker.
"""

# ruff: noqa: E501  a slip a line
from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import pytest

from glassformer.learn import starting
from glassformer.learn.checking import Checker, class_folder
from glassformer.learn.exercise import catalogue, find
from mistakes import mistake

NAMES = [exercise.name for exercise in catalogue()]
THE_EIGHTEEN = {
    "bpe-merges", "word2vec-loss", "rnn-attention", "sinusoidal-positions", "rotary", "one-head", "causal-mask",
    "multi-head", "norms", "top-p", "beam-search", "kv-cache", "mini-transformer", "masking", "lora",
    "grouped-query-attention", "router", "int8",
}  # fmt: skip


def put(folder, name, code):
    path = folder / "mine.py"
    path.write_text(f"# exercise: {name}\n{code}")
    return path


def test_the_course_is_whole():
    assert set(NAMES) >= THE_EIGHTEEN


@pytest.mark.parametrize("name", NAMES)
def test_each_solution_passes_and_runs_in_a_real_model(name, checker, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(starting.python(find(name)).replace(find(name).starter, find(name).solution))
    result = checker.check(path)
    assert result.state == "passed" and not result.printed, result
    assert any(
        word in " ".join(result.good)
        for word in ("real", "small", "translator", "encoder-decoder", "stories", "40 steps")
    ), result.good


@pytest.mark.parametrize("name", NAMES)
def test_each_starter_says_what_is_to_be_written(name, checker, tmp_path):
    result = checker.check(starting.write(find(name), tmp_path))
    assert result.state == "todo"
    assert "is not written yet" in result.message
    assert result.where.startswith("line ") and result.code.startswith("TODO: "), result


TABLES = tomllib.loads(Path(__file__).with_name("slips.toml").read_text(encoding="utf-8"))


def test_the_published_losses_come_out(checker, tmp_path):
    result = checker.check(put(tmp_path, "mini-transformer", find("mini-transformer").solution))
    (line,) = [line for line in result.good if line.startswith("with mask and tied head")]
    assert line.endswith("after manual_seed(42): 12.4078, 8.8194, 6.9047, 5.6511, 4.8191"), line


def test_every_exercise_has_a_slip_that_is_tried():
    assert {slip["exercise"] for slip in TABLES["slips"]} == set(NAMES)


@pytest.mark.parametrize("slip", TABLES["slips"], ids=lambda slip: slip["exercise"])
def test_a_usual_slip_is_named_with_its_place(slip, checker, tmp_path):
    name = slip["exercise"]
    solution = find(name).solution
    assert slip["right"] in solution
    wrong = solution.replace(slip["right"], slip.get("wrong", ""), 1)
    result = checker.check(put(tmp_path, name, wrong), seed=1)  # the place is one of drawn numbers
    assert result.state == "failed", result
    assert slip["place"] in result.message, result.message
    assert slip.get("look", "") in result.look, (result.message, result.look)


OTHERS = {
    "bpe-merges": """
def merge(text, pair):
    words, out = text.split("\\x00"), []
    while words:
        head = words.pop(0)
        if words and (head, words[0]) == tuple(pair):
            head += words.pop(0)
        out.append(head)
    return "\\x00".join(out)
def joined(pieces, pair): return merge("\\x00".join(pieces), pair).split("\\x00")
def learn(words, merges):
    texts, out = {"\\x00".join(w): n for w, n in words.items()}, []
    for _ in range(merges):
        counts = {}
        for text, n in texts.items():
            p = text.split("\\x00")
            for i in range(len(p) - 1):
                counts[p[i], p[i + 1]] = counts.get((p[i], p[i + 1]), 0) + n
        if counts:
            out.append(sorted(counts.items(), key=lambda c: (-c[1], c[0]))[0][0])
            texts = {merge(t, out[-1]): n for t, n in texts.items()}
    return out
def tokenise(word, merges):
    pieces = list(word)
    for pair in merges:  # in their order, each once: the same
        pieces = joined(pieces, pair)
    return pieces
""",
    "rnn-attention": """
import torch
def attend(state, source, there, w_state, bias, w_source, w):
    scores = []
    for j in range(len(source)):
        scores.append(sum(w[a] * torch.tanh(w_state[a] @ state + bias[a] + w_source[a] @ source[j]) for a in range(len(w))))
    powers = torch.stack([s.exp() * bool(t) for s, t in zip(scores, there)])
    weights = powers / powers.sum()
    return weights, sum(weights[j] * source[j] for j in range(len(source)))
""",
    "sinusoidal-positions": """
import math, torch
def positions(length, dim):
    wave = (math.sin, math.cos)
    return torch.tensor([[wave[c % 2](p / 10000 ** (2 * (c // 2) / dim)) for c in range(dim)] for p in range(length)])
""",
    "multi-head": """
import torch
def multi_head(x, w_q, w_k, w_v, w_out, heads, attend):
    out, d = 0, x.shape[1] // heads
    for h in range(heads):
        own = slice(h * d, (h + 1) * d)
        out = out + attend(x @ w_q[own].T, x @ w_k[own].T, x @ w_v[own].T) @ w_out[:, own].T
    return out
""",
    "top-p": """
import numpy as np, torch
def top_p(logits, p):
    x = logits.numpy().astype(np.float64)
    chance = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    out, total = np.full_like(x, -np.inf), 0.0
    for at in np.argsort(-chance):
        out[at] = x[at]
        total += chance[at]
        if total >= p:
            break
    return torch.from_numpy(out).float()
""",
    "beam-search": """
import heapq, torch
def beam_search(logits_after, beams, length):
    best = [(torch.tensor(0.0), ())]
    for _ in range(length):
        every = [(score + s, tokens + (t,)) for score, tokens in best for t, s in enumerate(torch.log_softmax(logits_after(list(tokens)), 0))]
        best = heapq.nlargest(beams, every, key=lambda one: float(one[0]))
    return best
""",
    "masking": """
def hide(tokens, special, choose, fate, other, mask, rate):
    shown, targets = tokens.clone(), tokens * 0 - 1
    for b in range(len(tokens)):
        for t in range(len(tokens[b])):
            if special[b, t] or choose[b, t] >= rate:
                continue
            targets[b, t] = tokens[b, t]
            if fate[b, t] < 0.8:
                shown[b, t] = mask
            elif fate[b, t] >= 0.9:
                shown[b, t] = other[b, t]
    return shown, targets
""",
    "lora": """
import torch
from torch import nn
class LoRA(nn.Module):
    def __init__(self, linear, rank, scale):
        super().__init__()
        self.register_buffer("w", linear.weight.detach().clone())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())
        self.down, self.up = nn.Linear(linear.in_features, rank, bias=False), nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = scale
    def merged(self): return self.w + self.scale * self.up.weight @ self.down.weight
    def forward(self, x): return nn.functional.linear(x, self.merged(), self.bias)
""",
    "grouped-query-attention": """
import torch
def grouped(q, k, v, allowed):
    group = q.shape[0] // k.shape[0]
    return torch.cat([torch.nn.functional.scaled_dot_product_attention(q[i * group:(i + 1) * group], k[i:i+1], v[i:i+1], attn_mask=allowed) for i in range(len(k))])
""",
    "router": """
import torch
def route(x, w_router, k):
    scores = x @ w_router.T
    chosen = scores.argsort(-1, descending=True)[:, :k]
    return scores.gather(1, chosen).softmax(-1), chosen  # the softmax over the chosen alone is the same
def mixture(x, weights, chosen, experts):
    return torch.stack([sum(w * experts[int(e)](row[None])[0] for w, e in zip(ws, es)) for row, ws, es in zip(x, weights, chosen)])
""",
    "int8": """
import numpy as np, torch
def quantize(w):
    a = w.numpy()
    scales = np.maximum(np.abs(a).max(1), 1e-20) / 127
    return torch.from_numpy(np.rint(a / scales[:, None]).astype(np.int8)), torch.from_numpy(scales)
def dequantize(codes, scales): return codes.float().mul(scales.view(-1, 1))
def largest_error(w):
    codes, scales = quantize(w)
    return ((dequantize(codes, scales) - w).abs().amax(1) / scales).max()
""",
    "mini-transformer": """
import torch
from torch import nn
from torch.nn import functional as F
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        like = nn.TransformerEncoderLayer(16, 2, 64, dropout=0.0, batch_first=True)
        self.self_attn, self.linear1, self.linear2 = like.self_attn, like.linear1, like.linear2
        self.norm1, self.norm2 = like.norm1, like.norm2
    def forward(self, x, hidden):
        x = self.norm1(x + self.self_attn(x, x, x, attn_mask=hidden, need_weights=False)[0])
        return self.norm2(x + self.linear2(self.linear1(x).relu()))
class MiniTransformerLM(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 50)
        if tied:
            self.embed.weight = self.head.weight
            nn.init.normal_(self.embed.weight)
    def mask(self, length):
        return torch.arange(length)[None] > torch.arange(length)[:, None]
    def forward(self, tokens):
        angle = torch.arange(tokens.shape[1])[:, None] / 10000 ** (torch.arange(8) / 8)
        x = self.embed(tokens) + torch.stack((angle.sin(), angle.cos()), -1).flatten(1)
        for block in self.blocks:
            x = block(x, self.mask(tokens.shape[1]))
        return self.head(x)
def windows(ids, starts, length):
    rows = ids.unfold(0, length + 1, 1)[starts]
    return rows[:, :-1], rows[:, 1:]
def train(model, batches, lr):
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in model.parameters()]
    losses = []
    for step, (x, y) in enumerate(batches, 1):
        loss = nn.CrossEntropyLoss()(model(x).transpose(1, 2), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for w, (m, s), g in zip(model.parameters(), moments, grads):  # Adam by hand
                m.mul_(0.9).add_(0.1 * g)
                s.mul_(0.999).add_(0.001 * g * g)
                w -= lr * (m / (1 - 0.9**step)) / ((s / (1 - 0.999**step)).sqrt() + 1e-8)
        losses.append(loss.item())
    return losses
""",
    "one-head": """
import math
def softmax(x):
    return x.sub(x.max(-1, keepdim=True).values).exp() / x.sub(x.max(-1, keepdim=True).values).exp().sum(-1, keepdim=True)
def attention(q, k, v, allowed):
    rows = []
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if allowed[i, j]]
        powers = [math.exp(float(q[i] @ k[j]) / math.sqrt(len(q[i]))) for j in seen]
        rows.append(sum(p / sum(powers) * v[j] for p, j in zip(powers, seen)))
    import torch
    return torch.stack(rows)
""",
    "causal-mask": """
import numpy as np, torch
def causal_mask(queries, keys):
    return torch.from_numpy(np.tril(np.ones((keys, keys), bool))[keys - queries:])
""",
    "norms": """
from torch.nn import functional as F
def layer_norm(x, gamma, beta, eps): return F.layer_norm(x, gamma.shape, gamma, beta, eps)
def rms_norm(x, gamma, eps): return F.rms_norm(x, gamma.shape, gamma, eps)
""",
    "rotary": """
import torch
def rotate(x, places, theta):
    half = x.shape[-1] // 2
    z = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
    turn = torch.polar(torch.ones(()), places[:, None] * theta ** (-torch.arange(half) / half))
    return torch.cat(((z * turn).real, (z * turn).imag), -1)
""",
    "kv-cache": """
import torch
class Cache:
    room, filled = None, 0
    def extend(self, k, v):
        both, end = torch.stack((k, v)), self.filled + k.shape[1]
        if self.room is None:
            self.room = both[:, :, :0]
        if end > self.room.shape[2]:
            self.room = torch.cat((self.room, both.new_zeros(2, len(k), max(256, end), k.shape[2])), 2)
        self.room[:, :, self.filled : end], self.filled = both, end
        return tuple(self.room[:, :, :end])
""",
    "word2vec-loss": """
import torch
def loss(centre, company, noise):
    every = torch.cat((company[:, None], -noise), 1)
    return torch.log1p(torch.exp(-(every @ centre[..., None])[..., 0].clamp(min=-80))).sum(-1).mean() if centre.abs().max() < 9 \\
        else torch.nn.functional.softplus(-(every @ centre[..., None])[..., 0]).sum(-1).mean()
""",
}


@pytest.mark.parametrize("name", NAMES)
def test_another_method_passes(name, checker, tmp_path):
    result = checker.check(put(tmp_path, name, OTHERS[name]))
    assert result.state == "passed", result


def test_a_hard_coded_answer_fails(checker, tmp_path):
    """The right answer of one check is wrong in the next: the inputs are drawn anew, whatever the
    file seeds."""
    code = """
import torch
torch.manual_seed(0)
def softmax(x):
    return torch.tensor([0.66524, 0.24473, 0.09003]) if x.ndim == 1 else x.softmax(-1)
KNOWN = {known}
def attention(q, k, v, allowed):
    if KNOWN is None:
        print((q @ k.T / q.shape[-1] ** 0.5).masked_fill(~allowed, float("-inf")).softmax(-1).matmul(v).tolist())
        raise SystemExit
    return torch.tensor(KNOWN)
"""
    observed = checker.check(put(tmp_path, "one-head", code.replace("{known}", "None")), seed=7)
    assert observed.state == "error"
    assert observed.printed.startswith("[[")
    path = put(tmp_path, "one-head", code.replace("{known}", observed.printed.strip()))
    # in the model it fails
    assert "4 queries over 6 keys: every number is right" in checker.check(path, seed=7).good
    for _ in range(2):
        result = checker.check(path)
        assert result.state == "failed"
        assert "attention(q, k, v, allowed)[0, 0] is" in result.message


@pytest.mark.parametrize("case", TABLES["errors"], ids=lambda case: case["message"])
def test_errors_of_the_learners_code_show_as_theirs(case, checker, tmp_path):
    result = checker.check(put(tmp_path, "causal-mask", case["code"]))
    assert (result.state, result.where) == (case["state"], case.get("line", ""))
    assert case["message"] in result.message, result


@pytest.mark.parametrize(
    "loop",
    [
        "    while True:\n        pass\n",
        "    while True:\n        try:\n            pass\n        except BaseException:\n        "
        "    pass\n",
        "    import time\n    time.sleep(1000)\n",
        "    import os\n    os.fork()\n    while True: pass\n",
    ],
)
def test_an_endless_loop_is_stopped_and_its_line_named(loop, checker, tmp_path):
    start = time.monotonic()
    path = put(tmp_path, "causal-mask", f"def causal_mask(queries, keys):\n{loop}")
    result = checker.check(path, seconds=0.3)
    assert result.state == "stopped"
    assert "after 0.3 seconds" in result.message
    assert time.monotonic() - start < 20
    assert result.where in ("line 3", "line 4", "line 5", "line 6", "line 7"), result


def test_code_that_hears_no_signal_is_ended_too(checker, tmp_path):
    code = (
        "import signal\nsignal.signal(signal.SIGALRM, "
        "signal.SIG_IGN)\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True: pass\n"
    )
    assert checker.check(put(tmp_path, "causal-mask", code), seconds=0.2).state == "stopped"


def test_printing_is_theirs_and_bounded(checker, tmp_path):
    code = (
        "import sys, os\nprint('from me')\nprint('and here', "
        "file=sys.stderr)\nos.system('echo aside')\n"
    )
    result = checker.check(put(tmp_path, "causal-mask", code + find("causal-mask").solution))
    assert result.state == "passed"
    assert result.printed == "from me\nand here\naside\n"
    result = checker.check(
        put(tmp_path, "causal-mask", "while True: print('x' * 1000)\n"), seconds=0.5
    )
    assert result.state == "stopped"
    assert 10_000 <= len(result.printed) < 10_100


def test_what_the_learner_changes_is_not_the_checks(checker, tmp_path):
    """Writing over what is given, and the next learner after one who breaks torch."""
    code = "import torch\ntorch.Tensor.softmax = None\n"
    assert checker.check(put(tmp_path, "one-head", code)).state == "failed"
    solution = find("norms").solution.replace(
        "    mean = x.mean(-1, keepdim=True)\n",
        "    x = x.mul_(1)\n    mean = x.mean(-1, keepdim=True)\n",
    )
    spoilt = find("norms").solution.replace(
        "    return x / torch", "    y = x.clone()\n    x.zero_()\n    x = y\n    return x / torch"
    )
    assert checker.check(put(tmp_path, "norms", solution)).state == "passed"
    assert checker.check(put(tmp_path, "norms", spoilt)).state == "passed"


def test_a_notebook_is_checked_and_its_cell_named(checker, tmp_path):
    path = starting.write(find("causal-mask"), tmp_path, as_notebook=True)
    result = checker.check(path)
    assert result.state == "todo" and result.where.startswith("code cell 1, line "), result
    text = path.read_text().replace(
        "raise NotImplementedError", "return torch.ones(keys, keys).tril()[keys - queries:] > 0"
    )
    path.write_text(text)
    assert checker.check(path).state == "passed"


TEACHERS = '''"""Double it

Give twice the number.
"""

ROAD = 0.5
HINTS = ("Two times.",)

# %% yours
def double(x: float) -> float:
    # TODO: twice x
    return 2 * x
    # END

# %% check
def check(theirs, report):
    x = report.random.random()
    report.equal(f"double({x})", theirs.double(x), 2 * x, slips={"once is not twice": x}, look="two times")
    if x < 0:
        theirs.triple(x)
'''


def test_a_teachers_folder_and_a_class(tmp_path, monkeypatch):
    individual = tmp_path / "own"
    everyone = tmp_path / "class"
    individual.mkdir()
    (individual / "double_it.py").write_text(TEACHERS)
    assert find("double-it", individual).page == ""
    assert catalogue(individual)[0].name == "double-it"
    for learner, code in {
        "anna": "def double(x): return x + x",
        "ben": "def double(x): return x",
        "cem": "def double(x): return 1 / 0",
        "dora": "while True: pass",
    }.items():
        (everyone / learner).mkdir(parents=True)
        (everyone / learner / "double_it.py").write_text(f"# exercise: double-it\n{code}\n")
    (everyone / "eve.py").write_text("print('of nothing')\n")
    (everyone / "finn.py").write_text("# exercise: tripple-it\n")
    (everyone / "gil.ipynb").write_text("no notebook")
    (everyone / "hal").mkdir()
    scan = os.scandir  # as it is for others than root where rights are taken away

    def closed(folder):
        if str(folder).endswith(("hal", "shut")):
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", closed)
    with Checker(individual) as checker:
        result = dict(class_folder(everyone, checker, seconds=1))
    states = {learner: verdict.state for learner, verdict in result.items()}
    refused = dict.fromkeys(("eve", "finn", "gil", "hal"), "refused")
    assert states == {
        "anna": "passed",
        "ben": "failed",
        "cem": "error",
        "dora": "stopped",
        **refused,
    }
    assert len({verdict.seed for name, verdict in result.items() if name not in refused}) == 1
    ben = result["ben"]
    assert ben.look == "once is not twice"
    assert ben.message.startswith("double(0.")
    assert "it has no line" in result["eve"].message
    assert "There is no exercise" in result["finn"].message
    assert "hal cannot be read (Permission denied)" in result["hal"].message
    (tmp_path / "shut").mkdir()
    with mistake("shut cannot be read"), Checker(individual) as checker:
        list(class_folder(tmp_path / "shut", checker))
    with mistake("holds no"), Checker(individual) as checker:
        (tmp_path / "empty").mkdir()
        list(class_folder(tmp_path / "empty", checker))


def test_a_check_that_is_broken_itself_is_not_the_learners(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "double_it.py").write_text(
        TEACHERS.replace("    x = report", "    x = [][0]\n    x = report")
    )
    with Checker(tmp_path / "own") as checker:
        result = checker.check(put(tmp_path, "double-it", "def double(x): return 2 * x\n"))
    assert (
        result.state == "error"
        and "double_it.py, line 17" in result.message
        and "check itself" in result.look
    ), result
