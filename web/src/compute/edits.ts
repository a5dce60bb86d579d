// Edits that a page which computes makes itself: parts that add nothing (sight/edits/parts.py).
import { Refused } from "../core/transport";
import type { Program } from "./program";
import type { Tensor } from "./tensors";

export type Change = (x: Tensor) => Tensor;

const WRITTEN = /^(\w+)\("([^"]+)"(?:, (\d+))?(?:, "(zero|mean)")?\)$/;

/** A head's z (1, H, T, D) as zeros, or as the mean over the text. */
function without(head: number, mean: boolean): Change {
  return (z) => {
    const [, , length, size] = z.shape, out = { ...z, data: z.data.slice() }, start = head * length * size;
    for (let i = 0; i < size; i++) {
      let sum = 0;
      if (mean) for (let t = 0; t < length; t++) sum += z.data[start + t * size + i];
      for (let t = 0; t < length; t++) out.data[start + t * size + i] = sum / length;
    }
    return out;
  };
}

/** What edits make of the values of a pass, by their numbers. Refuses an edit that only Python makes. */
export function changes(program: Program, edits: readonly string[]): Map<number, Change> {
  const made = new Map<number, Change>();
  for (const text of edits) {
    const [, name, path, head, fill] = WRITTEN.exec(text) ?? [], value = name === "head_off" ? program.number.get(`${path}.z`) : program.number.get(`${path}.write`);
    if (!["head_off", "attn_off", "mlp_off"].includes(name) || value === undefined || (name === "head_off") === (head === undefined)) throw new Refused(422, `This page does not make the edit ${text}; open the model with “glassformer page” for it.`);
    const before = made.get(value), change: Change = name === "head_off" ? without(Number(head), fill === "mean") : (x) => ({ ...x, data: x.data.map(() => 0) });
    made.set(value, before ? (x) => change(before(x)) : change);
  }
  return made;
}
