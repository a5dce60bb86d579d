// Which matrix of a value is on the screen: its last two sides; the sides before them stand at a chosen place.
import { join, sides } from "../core/address";
import type { Op } from "../core/types";

export interface Slice {
  lead: { axis: string; size: number; at: number }[];
  row: { axis: string; size: number };
  col: { axis: string; size: number };
  /** What to ask for: the name with the chosen places, and the whole of the last two sides. */
  address: string;
  cell: (row: number, col: number) => string;
}

/** `chosen` gives the place along a leading side; heads of keys follow the heads of queries that read them. */
export function slice(op: Op, chosen: (axis: string, size: number) => number): Slice {
  const all = sides(op), flat = all.length < 2;
  const col = all[all.length - 1], row = flat ? { axis: "", size: 1 } : all[all.length - 2];
  const lead = (flat ? [] : all.slice(0, -2)).map((one) => ({ ...one, at: Math.max(0, Math.min(one.size - 1, chosen(one.axis, one.size))) }));
  const places = lead.map((one) => one.at);
  const address = lead.length ? join(op.id, [...places, ":", ":"]) : op.id;
  return { lead, row, col, address, cell: (r, c) => join(op.id, flat ? [c] : [...places, r, c]) };
}

/** Numbers that are shares have one colour scale from 0; all others one about 0. */
export function scaleOf(op: Op): "sequential" | "diverging" {
  return op.kind === "softmax" || (op.kind === "topk" && op.params.gives !== "chosen") || op.kind === "leaf" ? "sequential" : "diverging";
}
