// From logits to one token, as generation/sample.py does it, over the whole vocabulary and in single precision:
//   logits -> repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw
import type { Settings } from "./types";

export interface Chosen {
  raw: Float32Array; // the model's own probabilities
  warm: Float32Array; // after penalty and temperature
  final: Float32Array; // after the cuts; what is drawn from
  order: Uint32Array; // ids, the likeliest first
  left: { name: string; count: number }[]; // how many tokens each stage left
  entropy: number; // of the model's own distribution, in bits
  sum: number; // of the final probabilities
  token: number; // what is chosen
  from: number; // its share of the bar of all, from ..
  to: number; // .. to
}

const f = Math.fround;

export function softmax(logits: Float32Array, out = new Float32Array(logits.length)): Float32Array {
  let top = -Infinity, sum = 0;
  for (const v of logits) if (v > top) top = v;
  for (let i = 0; i < logits.length; i++) sum += out[i] = Math.exp(f(logits[i] - top));
  for (let i = 0; i < logits.length; i++) out[i] = out[i] / sum;
  return out;
}

/** Ids by their logit, the highest first, equal ones by id. */
export function sorted(logits: Float32Array): Uint32Array {
  const order = new Uint32Array(logits.length);
  for (let i = 0; i < order.length; i++) order[i] = i;
  return order.sort((a, b) => logits[b] - logits[a] || a - b);
}

/** Seen tokens less likely: logits above 0 divided by the penalty, others multiplied. */
export function penalised(logits: Float32Array, seen: Iterable<number>, penalty: number): Float32Array {
  if (penalty === 1) return logits;
  const out = logits.slice(), by = f(penalty);
  for (const id of new Set(seen)) if (id < out.length) out[id] = out[id] < 0 ? out[id] * by : out[id] / by;
  return out;
}

const orders = new WeakMap<Float32Array, Uint32Array>();
const penalties = new WeakMap<Float32Array, { key: string; made: Float32Array }>();

function order(logits: Float32Array): Uint32Array {
  let made = orders.get(logits);
  if (!made) orders.set(logits, (made = sorted(logits)));
  return made;
}

function withPenalty(logits: Float32Array, seen: readonly number[], penalty: number): Float32Array {
  if (penalty === 1) return logits;
  const key = `${penalty} ${seen.join()}`, known = penalties.get(logits);
  if (known?.key === key) return known.made;
  const made = penalised(logits, seen, penalty);
  penalties.set(logits, { key, made });
  return made;
}

/** What the settings make of a row of logits; `u` from 0 to 1 is the luck that draws. Sorts once a row, not once a call. */
export function sample(logits: Float32Array, seen: readonly number[], how: Settings, u: number): Chosen {
  const size = logits.length, raw = softmax(logits), base = withPenalty(logits, seen, how.repetition_penalty), ids = order(base);
  const left: Chosen["left"] = [];
  const warmth = how.temperature === 0 ? 1 : f(how.temperature), now = new Float32Array(size);
  for (let i = 0; i < size; i++) now[i] = base[i] / warmth;
  const warm = softmax(now);
  let entropy = 0;
  for (const p of raw) if (p > 0) entropy -= p * Math.log2(p);
  if (how.temperature === 0) {
    let best = 0;
    for (let i = 1; i < size; i++) if (base[i] > base[best]) best = i;
    const final = new Float32Array(size);
    final[best] = 1;
    return { raw, warm, final, order: ids, left: [{ name: "temperature", count: 1 }], entropy, sum: 1, token: best, from: 0, to: 1 };
  }
  const count = () => now.reduce((n, v) => n + (v > -Infinity ? 1 : 0), 0);
  if (how.top_k !== null) {
    const last = now[ids[Math.min(how.top_k, size) - 1]];
    for (let i = 0; i < size; i++) if (now[i] < last) now[i] = -Infinity;
    left.push({ name: "top_k", count: count() });
  }
  if (how.top_p !== null && how.top_p < 1) {
    const chance = softmax(now), p = f(how.top_p), least = f(1 - how.top_p);
    let mass = 0, cut = false;
    for (const id of ids) {
      mass += chance[id];
      if (!cut) cut = f(f(mass) - chance[id]) >= p || f(chance[id] * size) < least;
      if (cut) now[id] = -Infinity;
    }
    left.push({ name: "top_p", count: count() });
  }
  if (how.min_p) {
    let top = -Infinity;
    for (const v of now) if (v > top) top = v;
    const least = f(top + f(Math.log(how.min_p)));
    for (let i = 0; i < size; i++) if (now[i] < least) now[i] = -Infinity;
    left.push({ name: "min_p", count: count() });
  }
  const final = softmax(now);
  let total = 0;
  for (const p of final) total += p;
  const aim = u * total;
  let mass = 0, token = size - 1, from = 0, to = 1;
  for (let i = 0; i < size; i++) {
    const before = mass;
    mass += final[i];
    if (mass > aim) {
      [token, from, to] = [i, before / total, mass / total];
      break;
    }
  }
  return { raw, warm, final, order: ids, left, entropy, sum: total, token, from, to };
}
