"""Which row, which column, at which position: tables, heads, rotations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..plan import Index, Kind, Op, Reader, Weights, Worked, copy_of, products, scalar


class Lookup(Kind):
    """A row of a table: of the token, of its position, or of the token some places before."""

    name = "lookup"
    needs_whole_input = True

    def rows(self, op: Op, ids: Tensor) -> Tensor:
        """The row of the table that each token takes (B, T)."""
        if "row" in op.params:
            return torch.full_like(ids, op.params["row"])
        back = op.params.get("back", 0)
        if not back:
            return ids
        nothing = ids.new_full((ids.shape[0], min(back, ids.shape[1])), op.params["nothing"])
        return torch.cat((nothing, ids[:, : max(0, ids.shape[1] - back)]), 1)

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return F.embedding(self.rows(op, x[0]), w["table"])

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        back = op.params.get("back", 0)
        t = at[1] - back
        token = reader.input(0, at[0], max(t, 0))
        row = op.params["nothing"] if t < 0 else op.params.get("row", int(scalar(token)))
        line = reader.weight("table", row, at[-1])
        assert line is not None
        description = (
            "" if not back else f", of the token {back} before" if t >= 0 else ", of no token"
        )
        return copy_of(
            line,
            f"Row {row} of the table{description}, column {at[-1]}.",
            "table[row, column]",
            None,
            token,
            row=row,
        )


class PosSin(Kind):
    """Sines and cosines of the position (Vaswani et al. 2017, section 3.5)."""

    name = "pos_sin"

    def angle(self, op: Op, pos: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """The angle at each column, and whether the column is a cosine."""
        p, dim = op.params, op.shape[-1]
        half = (dim + 1) // 2
        pair = column % half if p["halves"] else column // 2
        cosine = column >= half if p["halves"] else column % 2 == 1
        last = max(dim - 2, 1) if p["endpoint"] else dim
        return (pos[..., None] + p["first"]).float() * p["theta"] ** (
            -(2 * pair).float() / last
        ), cosine

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        angle, cosine = self.angle(op, x[0], torch.arange(op.shape[-1], device=x[0].device))
        return torch.where(cosine, angle.cos(), angle.sin()).to(op.params["dtype"])

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        pos = reader.input(0, at[0], at[1])
        angle, cosine = self.angle(op, pos.values, torch.tensor([at[-1]]))
        wave = "cos" if bool(cosine) else "sin"
        value = float(angle.cos() if bool(cosine) else angle.sin())
        words = (
            f"The {'cosine' if wave == 'cos' else 'sine'} of position {int(scalar(pos))} x "
            "frequency of this column."
        )
        return copy_of(pos, words, f"{wave}(pos * theta^(-2i/d))", value, angle=float(angle))


class Shift(Kind):
    """The state of the step before; before the first, the initial one."""

    name = "shift"
    needs_whole_input = True

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        state = x[0]
        if op.params.get("reverse"):
            state = state.flip(1)
        first = torch.zeros_like(state[:, :1]) if len(x) < 2 else x[1][:, None].expand(-1, 1, -1)
        moved = torch.cat((first.to(state.dtype), state[:, :-1]), 1)
        return moved.flip(1) if op.params.get("reverse") else moved

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        b, t, c = at
        t = t + 1 if op.params.get("reverse") else t - 1
        if 0 <= t < op.shape[1]:
            return copy_of(reader.input(0, b, t, c), "The state of the step before.", "h[t-1]")
        if len(op.inputs) > 1:
            return copy_of(reader.input(1, b, c), "The first state, made of the source.", "h[0]")
        return Worked(
            0.0,
            torch.zeros(0, dtype=torch.float64),
            (),
            "Before the first token the state is 0.",
            "0",
        )


class Split(Kind):
    """Columns of a vector as heads: (B, T, ..) -> (B, heads, T, D); or a run of its last side."""

    name = "split"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        start, width = op.params["begin"], op.params["width"]
        section = x[0][..., start : start + width]
        if len(op.shape) == x[0].ndim:
            return section
        return section.view(*section.shape[:-1], op.shape[1], op.shape[3]).transpose(1, 2)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        start = op.params["begin"]
        if len(at) == 4:
            b, h, t, d = at
            column = start + h * op.shape[3] + d
            return copy_of(
                reader.input(0, b, t, column),
                f"Column {column}: head {h}, its dimension {d}.",
                "x[t, h D + d]",
            )
        column = start + at[-1]
        return copy_of(
            reader.input(0, *at[:-1], column), f"Column {column} of the vector.", "x[.., column]"
        )


class Concat(Kind):
    """Vectors side by side; or heads side by side, (B, H, T, D) -> (B, T, H D)."""

    name = "concat"

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        if op.params.get("heads"):
            return x[0].transpose(1, 2).flatten(2)
        return torch.cat([tensor.expand(*x[0].shape[:-1], -1) for tensor in x], -1)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        column = at[-1]
        if op.params.get("heads"):
            width = op.shape[-1] // op.params["heads"]
            head, d = divmod(column, width)
            return copy_of(
                reader.input(0, at[0], head, at[1], d),
                f"Head {head}, its dimension {d}.",
                "z[h, t, d]",
            )
        number = 0
        while column >= op.params["sizes"][number]:
            column -= op.params["sizes"][number]
            number += 1
        return copy_of(
            reader.input(number, *at[:-1], column),
            f"Column {column} of part {number}.",
            "part[.., column]",
        )


class Repeat(Kind):
    """The same vector for every token."""

    name = "repeat"
    needs_whole_input = True

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        return x[0][:, None].expand(-1, op.shape[1], -1)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        return copy_of(reader.input(0, at[0], at[-1]), "The same for every token.", "x[c]")


class Pick(Kind):
    """One vector for a whole text: of its first token, its last, the mean, the greatest, or a
    weighed mean of all."""

    name = "pool"
    needs_whole_input = True

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        match op.params["of"]:
            case "first":
                return x[0][:, 0]
            case "last":
                return x[0][:, -1]
            case "ends":
                return torch.cat((x[0][:, 0], x[0][:, -1]), -1)
            case "max":
                return x[0].amax(1)
            case "attention":
                return (x[1].softmax(1).transpose(1, 2) @ x[0])[:, 0]
            case _:
                return x[0].sum(1) / x[0].shape[1]

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        of, (n, c) = op.params["of"], at
        if of == "ends":
            width = op.shape[1] // 2
            t, c, of = (0, c, "first") if c < width else (-1, c - width, "last")
            return copy_of(reader.input(0, n, t, c), f"Of the {of} token.", "x[t, c]")
        if of in ("first", "last"):
            return copy_of(
                reader.input(0, n, 0 if of == "first" else -1, c), f"Of the {of} token.", "x[t, c]"
            )
        line = reader.input(0, n, None, c)
        if of == "max":
            return copy_of(
                line,
                f"The greatest of {len(line.values)} tokens.",
                "max_t x[t, c]",
                float(line.values.max()),
            )
        if of == "attention":
            fit = reader.input(1, n, None, 0)
            terms = fit.values.softmax(0) * line.values
            words = (
                f"{len(terms)} tokens, each by its share: the softmax of how well it fits "
                "the query."
            )
            return Worked(
                float(terms.sum()), terms, (line, fit), words, "sum_t softmax(fit)_t x[t, c]"
            )
        n = len(line.values)
        return products((line,), f"The mean of {n} tokens.", "sum_t x[t, c] / T", scale=1 / n)


class Rope(Kind):
    """Pairs of dimensions turned by angles that grow with the position (Su et al. 2021)."""

    name = "rope"

    def partner(self, op: Op, d: int, turned: int) -> int:
        """The dimension that ``d`` is turned with."""
        return d ^ 1 if op.params["interleaved"] else (d + turned // 2) % turned

    def compute(self, op: Op, x: Sequence[Tensor], w: Weights) -> Tensor:
        value, pos = x
        turned = op.params["turned"]
        cos, sin = op.params["table"](pos, turned, value.dtype)
        index = torch.tensor(
            [self.partner(op, d, turned) for d in range(turned)], device=value.device
        )
        rotated = value[..., :turned]
        return torch.cat((rotated * cos + rotated[..., index] * sin, value[..., turned:]), -1)

    def cell(self, op: Op, at: Index, reader: Reader) -> Worked:
        *place, d = at
        turned, line = op.params["turned"], reader.input(0, *at)
        pos = reader.input(1, at[0], at[2])
        if d >= turned:
            return copy_of(line, "This dimension is not turned.", "x", None, pos)
        position = pos.values.long()[None]
        cos, sin = (
            float(table[0, 0, 0, d])
            for table in op.params["table"](position, turned, torch.float64)
        )
        partner_line = reader.input(0, *place, self.partner(op, d, turned))
        terms = torch.tensor([scalar(line) * cos, scalar(partner_line) * sin], dtype=torch.float64)
        words = (
            f"Turned with its pair by the angle of position {int(scalar(pos))}: cos {cos:.6g}, "
            f"sin {sin:.6g}."
        )
        numbers = {"cos": cos, "sin": sin}
        return Worked(
            float(terms.sum()),
            terms,
            (),
            words,
            "x cos + pair sin",
            (line, partner_line, pos),
            numbers,
        )
