"""A page with all that a page of the site can have, and how the site is built."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def built(source, out, processes=1):
    """The pages of a folder, as `make docs` builds ours."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-E",
        "-j",
        str(processes),
        "-c",
        str(DOCS),
    ]
    command += ["-d", str(out / "trees")]
    return subprocess.run(
        [*command, str(source), str(out / "site")], capture_output=True, text=True, timeout=1500
    )


PAGE = """# A page

```{computed}
row = torch.tensor([2.0, 1.0, 0.0])
print("printed")
table(["score", "share"], [[a, b] for a, b in zip(row, row.softmax(0))])
```

The sum is {value}`row.exp().sum():.3f`, and $\\frac{1}{2}$.

```{computed}
:code: folded
row.shape
```

::::{depths}
:::{depth} story
one
:::
:::{depth} plain
two
:::
:::{depth} vectors
three
:::
:::{depth} equations
$$x^2$$
:::
:::{depth} functions
five
:::
::::

:::{question} Why so?
Because.
:::

```{code-of} glassformer.core.nn.layers.RMSNorm.forward
```

```{computed}
:code: hidden
model, tokenizer = small()
trace = glassformer.trace(model, tokenizer, "The cat sat")
```

```{live} trace
:view: attention
:title: A title & more
```

```{live} trace
:view: inside
```

```{sandbox} softmax
```

```{sandbox} av
```

```{sandbox} mask
```

```{sandbox} pos_sin
```

```{sandbox} rope
:start: str("0.6, 0.8")
```

```{sandbox} sampling
:start: chr(10).join(f"{word} {score}" for word, score in zip("abc", [2.0, 1.0, 0.5]))
```
"""
