// The plan of a run as one drawing: tokens, embedding, blocks with their parts, head, answer. Every box is operations of the
// plan, every arrow an operation that reads another; nothing is known of a model but its plan.
import { textOf } from "../text/kinds";
import { inEncoder, isAttention, stackOf } from "./address";
import type { Op, Run } from "./types";
import { isLabels } from "./whatif";

/** A box: operations that belong together. */
export interface Part {
  key: string;
  title: string;
  ops: Op[];
  shape: number[]; // of what it gives, without the batch
  widest: number; // numbers a token has in it at most
  after: boolean; // reads the part before it in its block
}

/** A block with its parts, or a box outside all blocks. */
export interface Item {
  key: string;
  column: number;
  stack: string;
  layer: number | null;
  parts: Part[];
  reads: string[]; // items
}

export interface Flow {
  columns: Item[][];
  cross: { item: string; part: string; from: string }[];
}

const RECURRENT = /^(lstm|gru|rnn)/;

/** What operations together are called: by their kinds and sides. */
function called(ops: readonly Op[], name: string): string {
  const attention = ops.find(isAttention), kinds = new Set(ops.map((op) => op.kind)), cell = ops.find((op) => RECURRENT.test(op.kind));
  if (attention) return attention.of_source.includes("S") && !attention.of_source.includes("T") ? "Cross-attention" : "Self-attention";
  if (kinds.has("router")) return "Mixture of experts";
  if (cell || ops.some((op) => /\.cells\.\d/.test(op.id))) return `Recurrence${cell ? ` (${cell.kind.split("_")[0].toUpperCase()})` : ""}`;
  if ((kinds.has("act") || kinds.has("glu")) && ops.filter((op) => op.kind === "linear").length > 1) return "Feed-forward";
  if (ops.length === 1) return textOf(ops[0].kind, ops[0].params, ops[0].id).title;
  const plain = name.replace(/[_.]/g, " ");
  return plain[0].toUpperCase() + plain.slice(1);
}

const OUTSIDE: Record<string, string> = { tokens: "Tokens", embedding: "Embedding", pool: "One vector of the text", labels: "Label scores", head: "Head", answer: "Answer" };

function part(key: string, ops: Op[], name: string, title = called(ops, name)): Part {
  const gives = [...ops].reverse().find((op) => op.kind !== "concat" && op.shape.length > 1) ?? ops[ops.length - 1];
  const wide = ops.filter((op) => op.shape.length > 1 && !op.axes.includes("S") && op.axes.at(-1) !== "D" && op.axes.at(-1) !== "QKV").map((op) => op.shape[op.shape.length - 1]);
  return { key, title, ops, shape: gives.shape[0] === 1 ? gives.shape.slice(1) : gives.shape, widest: Math.max(1, ...wide), after: false };
}

export function flowOf(run: Run): Flow {
  const pair = !!run.source_tokens, { plan } = run;
  const recurrent = new Set(plan.filter((op) => op.layer !== null && /\.cells\.\d/.test(op.id)).map(stackOf));
  const place = new Map<string, { item: string; sub: string }>();
  const items = new Map<string, { stack: string; layer: number | null; column: number; ops: Op[] }>();
  const ofSource = (op: Op, stack: string) => pair && (inEncoder(stack) || op.of_source.includes("T") || /^(source|encoder)/.test(op.module || op.id));
  const entered = new Set<number>(); // columns whose blocks have begun
  const put = (op: Op, key: string, sub: string, stack: string, layer: number | null) => {
    if (!items.has(key)) items.set(key, { stack, layer, column: pair && !ofSource(op, stack) ? 1 : 0, ops: [] });
    items.get(key)!.ops.push(op);
    place.set(op.id, { item: key, sub });
  };
  plan.forEach((op, at) => {
    const first = (op.module || op.id).split(".")[0];
    // What a recurrent stack does between its cells belongs to the cell that comes next.
    const owner = op.layer === null && recurrent.has(first) ? plan.slice(at).find((one) => one.layer !== null && stackOf(one) === first) : op.layer === null ? undefined : op;
    const column = pair && !ofSource(op, op.layer === null ? "" : stackOf(op)) ? 1 : 0;
    if (owner) {
      entered.add(column);
      const rest = (op.module || op.id).replace(op.layer === null ? /^[^.]+\.?/ : /^.*?\.\d+(\.|$)/, "").split(".");
      const sub = rest.length > 1 || (op.module && rest[0]) ? rest[0] + (/^\d+$/.test(rest[1] ?? "") ? `.${rest[1]}` : "") : "";
      put(op, `${stackOf(owner)}.${owner.layer}`, sub, stackOf(owner), owner.layer);
      return;
    }
    const scores = op.axes.includes("V") || op.kind === "lm_head" || op.id === "logits" || op.id.startsWith("head.");
    const name = op.id === "probs" ? "answer" : op.kind === "leaf" ? "tokens" : isLabels(op) ? "labels" : op.id.startsWith("pool.") ? "pool" : scores ? "head" : entered.has(column) ? `after ${first}` : "embedding";
    put(op, `${column ? "target" : "source"} ${name}`, name, "", null);
  });
  const made = [...items].map(([key, { stack, layer, column, ops }]): Item => {
    const reads = [...new Set(ops.flatMap((op) => op.in.map((id) => place.get(id)?.item ?? "")).filter((one) => one && one !== key))];
    if (layer === null) {
      const name = place.get(ops[0].id)!.sub;
      return { key, column, stack, layer, reads, parts: [part(key, ops, name, name === "tokens" && pair && !column ? "Source tokens" : OUTSIDE[name] ?? (ops.length > 1 ? "After the blocks" : undefined))] };
    }
    const subs = new Map<string, Op[]>();
    for (const op of ops) {
      const { sub } = place.get(op.id)!;
      if (sub) subs.set(sub, [...(subs.get(sub) ?? []), op]);
    }
    for (const [sub, some] of [...subs]) if (some.every((op) => op.kind === "norm") || (recurrent.has(stack) && !some.some(isAttention))) subs.delete(sub);
    if (recurrent.has(stack)) subs.set("recurrence", ops.filter((op) => !subs.has(place.get(op.id)!.sub)));
    if (!subs.size) subs.set("block", ops);
    const parts = [...subs].map(([sub, some]) => part(`${key}/${sub}`, some, sub));
    parts.forEach((one, nth) => (one.after = nth > 0 && follows(parts[nth - 1], one, ops)));
    return { key, column, stack, layer, reads, parts };
  });
  const columns = pair ? [made.filter((one) => !one.column), made.filter((one) => one.column)] : [made];
  const byKey = new Map(made.map((one) => [one.key, one]));
  const cross = pair ? made.filter((one) => one.column).flatMap((item) => item.reads.filter((from) => byKey.get(from)?.column === 0 && byKey.get(from)!.parts[0].title !== "Source tokens").map((from) => {
    const inside = item.parts.find((one) => one.ops.some((op) => op.in.some((id) => place.get(id)?.item === from)));
    return { item: item.key, part: (inside ?? item.parts[0]).key, from };
  })) : [];
  return { columns, cross };
}

/** Whether a part reads another of its block, at once or through steps of the block between them. */
function follows(before: Part, after: Part, block: readonly Op[]): boolean {
  const byId = new Map(block.map((op) => [op.id, op])), goal = new Set(before.ops.map((op) => op.id)), seen = new Set<string>();
  const walk = (ids: readonly string[]): boolean => ids.some((id) => {
    if (goal.has(id)) return true;
    if (seen.has(id) || !byId.has(id)) return false;
    seen.add(id);
    return walk(byId.get(id)!.in);
  });
  return walk(after.ops.flatMap((op) => op.in));
}
