// An address is the tape's path with an index: decoder.blocks.3.attn.scores[4,7,2], batch row left out.
import type { Op } from "./types";

export interface Address {
  name: string;
  index: number[] | null;
}

export function parse(address: string): Address {
  const match = /^\s*([^[\]]+?)\s*(?:\[([^[\]]*)\])?\s*$/.exec(address);
  if (!match) return { name: address, index: null };
  const index = match[2] === undefined ? null : match[2].split(",").map(Number);
  return { name: match[1], index };
}

export function join(name: string, index: readonly (number | string)[]): string {
  return index.length ? `${name}[${index.join(",")}]` : name;
}

/** The sides that a reader sees: without the batch of one. */
export function sides(op: Op): { axis: string; size: number }[] {
  const all = op.axes.map((axis, i) => ({ axis, size: op.shape[i] }));
  return (op.axes[0] === "B" || op.axes[0] === "N") && op.shape[0] === 1 && all.length > 1 ? all.slice(1) : all;
}

/** The address of a part of a value: the side of one text, where there is one, stands before the places, and the rest is said whole. */
export function at(op: Op, ...places: (number | string)[]): string {
  if (op.axes[0] !== "row") return join(op.id, places);
  return join(op.id, [0, ...places, ...Array<string>(op.axes.length - 1 - places.length).fill(":")]);
}

/** What the heads of an attention look at. */
export function isAttention(op: Op): boolean {
  return op.axes.slice(-3).join() === "H,T,S" && (op.kind === "softmax" || op.id.endsWith(".pattern"));
}

/** decoder.blocks.3.attn.q as L3.attn.q: short, for labels; the address itself is always in the title. */
export function short(name: string): string {
  return name.replace(/^([a-z_.]*?)\.(\d+)\./i, (_, stack, layer) => `${inEncoder(stack) ? "E" : "L"}${layer}.`).replace(/^decoder\./, "");
}

/** attn.q of decoder.blocks.3.attn.q. */
export function tail(name: string): string {
  return name.replace(/^.*?\.\d+\./, "").replace(/^(encoder|decoder)\./, "");
}

/** What the layer of an operation is one of: decoder of ours, model.layers of another module's. */
export function stackOf(op: Op): string {
  return op.module ? op.module.replace(/\.\d+(\.[^]*)?$/, "") : op.id.split(".")[0];
}

export const inEncoder = (stack: string): boolean => /(^|\.)encoder(\.|$)/.test(stack);

const SIDE: Record<string, string> = {
  row: "texts",
  T: "tokens", S: "keys", H: "heads", K: "key-value heads", D: "head width", C: "width", F: "neurons", V: "words",
  E: "experts", k: "choices", L: "labels", N: "texts", B: "batch", R: "rank", HD: "heads × width", KD: "kv heads × width", QKV: "q, k, v",
};

export function sideName(axis: string): string {
  return SIDE[axis] ?? axis;
}

const models = new Map<string, string>(); // by run

/** Remember which model a run is of. */
export function nameRun({ run, model, edits = [] }: { run: string; model: string; edits?: readonly string[] }): void {
  models.set(run, edits.length ? `${model}, edited` : model);
}

/** An address as a reader sees it: a model's name in the place of its run's number. */
export function named(address: string): string {
  return address.replace(/[\w-]+/g, (word) => models.get(word) ?? word);
}
