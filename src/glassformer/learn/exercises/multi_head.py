"""Many heads from one

One head can look in one way at a time. So the vectors are cut into several narrow ones, each head
attends with its own part, and the answers are laid side by side again and mixed by one more matrix:

    q = x W_q^T   (T, C)  ->  heads pieces of (T, C / heads)      the same for k and v
    answer of head h = attend(q_h, k_h, v_h)
    out = [answer of head 0 | head 1 | ...] W_out^T                (T, C)

Head 0 has the first C / heads columns, head 1 the next ones, and so on. `attend` is given:
attention of one head (in our model it also turns q and k by their positions).

Weights are (outputs, inputs), as PyTorch keeps them: x goes through them by `x @ w.T`.
"""

from typing import Any

from glassformer.learn import real_model
from glassformer.learn.check_report import CheckReport

ROAD = 5.1
HINTS = (
    "q[:, 0:d] is head 0, q[:, d:2 * d] is head 1, where d = C / heads.",
    "q.chunk(heads, dim=-1) cuts the last dimension into heads pieces.",
    "torch.cat(answers, dim=-1) @ w_out.T",
)

# %% yours
from collections.abc import Callable

import torch
from torch import Tensor


def multi_head(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_out: Tensor,
    heads: int,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """x (T, C), four matrices (C, C); attend(q, k, v) takes and gives (T, C / heads) -> (T, C)."""
    # TODO: project, cut into heads, attend with each, lay side by side, mix by w_out
    q, k, v = (projected.chunk(heads, dim=-1) for projected in (x @ w_q.T, x @ w_k.T, x @ w_v.T))
    answers = [attend(q[h], k[h], v[h]) for h in range(heads)]
    return torch.cat(answers, dim=-1) @ w_out.T
    # END


# %% check


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True
    )[0]


def check(learner: Any, report: CheckReport) -> None:
    T, C, heads = 5, 12, 3
    x, (w_q, w_k, w_v, w_out) = report.randn(T, C), (report.randn(C, C) * 0.3 for _ in range(4))

    args = x, w_q, w_k, w_v
    apart = multi_head(*args, torch.eye(C), heads, causal)  # the heads' answers side by side
    order = torch.arange(C).view(-1, heads).T.flatten()
    right = apart @ w_out.T
    slips = {
        "the end: the heads' answers still have to go through w_out": apart,
        "the cut: head 0 has the first C / heads columns, not every heads-th one": multi_head(
            x, w_q[order], w_k[order], w_v[order], w_out[:, order], heads, causal
        ),
        "the matrices: they are (outputs, inputs), so x @ w.T": multi_head(
            x, w_q.T, w_k.T, w_v.T, w_out.T, heads, causal
        ),
        "the joining: put each token's answers side by side (heads before width), without mixing "
        "up tokens": apart.view(T, heads, -1).transpose(0, 1).reshape(T, C) @ w_out.T,
    }
    shapes: list[tuple[int, ...]] = []

    def watched(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shapes.append(tuple(q.shape))
        return causal(q, k, v)

    out = learner.multi_head(*args, w_out, heads, watched)
    want = [(T, C // heads)] * heads
    calls = (
        f"attend was called {len(shapes)} times, with q of "
        f"{', '.join(map(str, shapes[:3])) or 'nothing'}"
    )
    report.true(
        shapes == want,
        f"{calls}; it should be {heads} times with {want[0]}.",
        "one call for each head",
    )
    report.equal("multi_head(x, ...)", out, right, slips=slips)
    report.say(f"{heads} heads of width {C // heads}: every number is right")

    model, tokenizer = real_model.real()

    def by_learner(module: Any) -> Any:
        def forward(x: Tensor, flow: Any, position: Any, kv: Any = None) -> Tensor:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                q, k = (norm(y[None, None]) for norm, y in ((module.q_norm, q), (module.k_norm, k)))
                return causal(position.rotate(q, flow)[0, 0], position.rotate(k, flow)[0, 0], v)

            weights = (module.q.weight, module.k.weight, module.v.weight, module.out.weight)
            return learner.multi_head(x[0], *weights, module.heads, attend)[None]

        return forward

    name = "the text that our model writes with your heads"
    with report.same(name, lambda: real_model.greedy(model, tokenizer)) as text:
        for module in real_model.attentions(model):
            module.forward = by_learner(module)
    report.say(f"in the real model, 4 blocks of 4 heads, the same text: {text!r}")
