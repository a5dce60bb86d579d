// The answer of a run at one place as probabilities, and how an edit moves it.
import { headOf, logits, run, sibling, vocabulary } from "./run";
import * as state from "./state";
import type { Op, Run } from "./types";
import { visible } from "./format";
import { softmax } from "./arithmetic";

export { softmax };

export interface Answer {
  run: Run;
  position: number;
  logits: Float32Array;
  probabilities: Float64Array;
  /** The ids with the highest probabilities, the highest first. */
  top: number[];
}

/** The `count` places with the highest numbers. */
export function highest(row: ArrayLike<number>, count: number): number[] {
  const best: number[] = [];
  for (let i = 0; i < row.length; i++) {
    if (best.length === count && !(row[i] > row[best[count - 1]])) continue;
    let at = best.length;
    while (at > 0 && row[i] > row[best[at - 1]]) at--;
    best.splice(at, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/** Where the answer is read: an encoder's first mask token (or the locked token), else the last position. */
export function answerPlace(made: Run): number {
  if (made.task !== "masked") return made.tokens.length - 1;
  const masked = made.tokens.findIndex((one) => one.special && /mask/i.test(atob(one.bytes)));
  return masked >= 0 ? masked : (state.query.value ?? made.tokens.length - 1);
}

export function hasWords(made: Run): boolean {
  return !!headOf(made);
}

export async function answerOf(made: Run, position: number): Promise<Answer> {
  const row = await logits(made.run, position), probabilities = softmax(row);
  return { run: made, position, logits: row, probabilities, top: highest(probabilities, 5) };
}

/** The words that tell how an answer moved: the likeliest of both, and who gained the most. */
export function telling([before, after]: readonly Answer[], most = 5): number[] {
  const gain = after.probabilities.map((p, id) => p - before.probabilities[id]);
  return [...new Set([...before.top, ...after.top, ...highest(gain, most).filter((id) => gain[id] > 0)])];
}

/** The answers without and with one more edit, at the same place. */
export async function moved(edit: string): Promise<[Answer, Answer]> {
  const made = run.value!, place = answerPlace(made);
  const other = await sibling([...state.edits.value, edit]);
  return Promise.all([answerOf(made, place), answerOf(other, place)]);
}

const decoder = new TextDecoder();

/** A piece of the vocabulary as a reader sees it. */
export const shown = (piece: Uint8Array): string => visible(decoder.decode(piece)) || "∅";

/** Pieces of the vocabulary as a reader sees them, by id. */
export async function wordsOf(ids: readonly number[], model = state.model.value): Promise<string[]> {
  const known = await vocabulary(model);
  return ids.map((id) => (known[id] ? shown(known[id]) : `#${id}`));
}

/** Scores of labels; a text's vector that is only scaled has the same name in the plan, but no weights. */
export const isLabels = (op: Op) => op.kind === "classify" && Object.keys(op.w).length > 0;

/** The vector that a text ends in, where the model ends in one. */
export function vectorOf(made: Run): Op | undefined {
  return [...made.plan].reverse().find((op) => op.id.startsWith("pool.") && op.axes[0] === "N" && op.shape.length === 2 && op.id !== "pool.total" && !isLabels(op));
}

export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) {
    ab += a[i] * b[i];
    aa += a[i] ** 2;
    bb += b[i] ** 2;
  }
  return ab / Math.sqrt(aa * bb);
}
