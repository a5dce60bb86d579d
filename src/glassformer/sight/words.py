"""What a function of PyTorch does to one number: an equation, and a sentence for the screen."""

from __future__ import annotations

from typing import Any

EQUATIONS = {
    "linear": "sum_i x_i W[o,i] (+ b_o)",
    **dict.fromkeys(("matmul", "bmm", "mm"), "sum_i a[r,i] b[i,c]"),
    "mv": "sum_i a[r,i] b_i",
    "dot": "sum_i a_i b_i",
    "addmm": "b_c + sum_i x_i W[i,c]",
    "baddbmm": "b_c + sum_i x_i W[i,c]",
    "embedding": "E[id,c]",
    "grouped_mm": "sum_i x_i W_e[i,c]",
    "softmax": "e^(x_j - max) / sum_i e^(x_i - max)",
    "log_softmax": "x_j - log sum_i e^x_i",
    **dict.fromkeys(
        ("layer_norm", "batch_norm", "group_norm"), "(x - mean) / sqrt(var + eps) * gain + shift"
    ),
    "rms_norm": "x / sqrt(mean(x^2) + eps) * gain",
    "cross_entropy": "log sum_i e^x_i - x_target",
    "logsumexp": "log sum_i e^x_i",
    "index_add": "x + sum_i y_i",
    "scatter_add": "x + sum_i y_i",
    "conv_transpose2d": "sum_i x_i w_i (+ b)",
    "prod": "x_0 x_1 .. x_n",
    "mean": "sum_i x_i / n",
    "sum": "sum_i x_i",
    "cumsum": "x_0 + .. + x_i",
    "var": "sum_i (x_i - mean)^2 / n",
    "add": "a + b",
    "sub": "a - b",
    "rsub": "c - x",
    "mul": "a b",
    "div": "a / b",
    "rdiv": "b / a",
    "neg": "-x",
    "pow": "x^p",
    "exp": "e^x",
    "log": "ln x",
    "sqrt": "sqrt(x)",
    "rsqrt": "1 / sqrt(x)",
    "square": "x^2",
    "sigmoid": "1 / (1 + e^-x)",
    "tanh": "tanh x",
    "relu": "max(0, x)",
    "gelu": "x Phi(x)",
    "silu": "x / (1 + e^-x)",
    "softplus": "ln(1 + e^x)",
    "sin": "sin x",
    "cos": "cos x",
    "where": "a where the condition holds, else b",
    "masked_fill": "x, or a constant where the mask is set",
    "max": "the largest x_i",
    "amax": "the largest x_i",
    "topk": "the k largest x_i",
    "argmax": "the place of the largest x_i",
    "conv1d": "sum_i x_i w_i (+ b)",
    "conv2d": "sum_i x_i w_i (+ b)",
    "einsum": "sum_i a_i b_i",
}

PRODUCTS = ["linear", "matmul", "bmm", "mm", "mv", "dot", "addmm", "baddbmm", "einsum"]
WINDOWS = ["conv1d", "conv2d", "conv_transpose2d"]
SENTENCES = {
    **dict.fromkeys(PRODUCTS, "{terms} products are added up."),
    "grouped_mm": "{terms} products with the matrix of the row's expert are added up.",
    **dict.fromkeys(WINDOWS, "{count} numbers: products of the window and the filter, added up."),
    "embedding": "Row {row} of the table {table}; nothing is computed.",
    "softmax": "e^(x - {max:.6g}) = {exp:.6g}, divided by the sum of all {terms}, {sum:.6g}.",
    "layer_norm": "The row's mean {mean:.6g} is taken away, the rest divided by its deviation {deviation:.6g}.",
    "batch_norm": "The channel's stored mean is taken away, the rest divided by its stored deviation.",
    "rms_norm": "Divided by the row's root mean square {root mean square:.6g}.",
    "group_norm": "The group's mean is taken away, the rest divided by its deviation ({count} numbers).",
    "log_softmax": "The number less the logarithm of the sum of e^x over all {count}.",
    "cross_entropy": "The logarithm of the sum of e^x less x of the target, the mean of all places.",
    "index_add": "Numbers that go to this place are added up.",
    "scatter_add": "Numbers that go to this place are added up.",
    "gru_cell": "A step of a gated unit, from {count} numbers: its input, its state before, its weights.",
    "lstm_cell": "A step of a memory cell, from {count} numbers: its input, its state before, its weights.",
    "lstm": "All steps of a memory in one function, from {count} numbers.",
    "gru": "All steps of a gated unit in one function, from {count} numbers.",
    "exp": "e to the power of the number.",
    "log": "The natural logarithm.",
    "pow": "The number to a power.",
    "rdiv": "A number divided by this one.",
    "neg": "The sign is turned.",
    "sqrt": "The square root.",
    "rsqrt": "One divided by the square root.",
    "softplus": "Almost 0 far below 0, almost the number itself far above, smooth between.",
    "topk": "One of the k largest numbers of its row.",
    "cumsum": "{count} numbers up to this place are added up.",
    "add": "Two numbers are added.",
    "sub": "One number less another.",
    "rsub": "A constant less the number.",
    "mul": "Numbers are multiplied.",
    "div": "One number divided by another.",
    "sum": "{count} numbers are added up.",
    "mean": "The mean of {count} numbers.",
    "sigmoid": "Pressed between 0 and 1.",
    "tanh": "Pressed between -1 and 1.",
    "relu": "Negative numbers become 0.",
    "gelu": "Large numbers pass, negative ones become almost 0, with a smooth bend between.",
    "silu": "The number times its own sigmoid.",
    "masked_fill": "A mask may put a constant in its place.",
    "where": "A condition chooses which of two numbers stands here.",
    "dropout": "Dropout is off and changes nothing.",
    "max": "The largest number of its row.",
    "amax": "The largest number of its row.",
    "argmax": "The place of the largest number of its row.",
    "edit": "An edit has changed this value.",
}

LEAVES = {
    "weight": "A number of the model's weights: here the arithmetic begins.",
    "input": "A number that the model is given: here the arithmetic begins.",
    "constant": "A number that was there before the pass: here the arithmetic begins.",
    "created": "A number that {name} makes from nothing else.",
}


def sentence(name: str, count: int, numbers: dict[str, Any]) -> str:
    """The sentence about a function that read ``count`` numbers."""
    plain = f"The function {name} of {count} number{'s' * (count != 1)}."
    return SENTENCES.get(name, plain).format(**numbers, count=count)


def equation(name: str) -> str:
    """The equation of a function; its own name where it has none here."""
    return EQUATIONS.get(name, f"{name}(..)")
