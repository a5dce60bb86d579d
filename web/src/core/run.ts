// The run on the page: what the model read, its plan, and every value of it that was asked for.
import { batch, computed, signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { at, nameRun, stackOf } from "./address";
import { FIRST } from "./openings";
import { read } from "./safetensors";
import * as state from "./state";
import { Refused, transport } from "./transport";
import type { Cell, ModelCard, Op, Run } from "./types";
import { pieces } from "./pieces";

export const models = signal<ModelCard[] | null>(null);
export const run = signal<Run | null>(null);
export const busy = signal(false);
export const failure = signal("");

export const card = computed(() => models.value?.find((one) => one.name === state.model.value) ?? null);
export const tokens = computed(() => pieces(run.value?.tokens ?? []));
export const sourceTokens = computed(() => pieces(run.value?.source_tokens ?? []));
export const ops = computed(() => new Map((run.value?.plan ?? []).map((one) => [one.id, one])));
export const layers = computed(() => {
  const found = new Map<string, { stack: string; layer: number; ops: Op[] }>();
  for (const one of run.value?.plan ?? []) {
    if (one.layer === null) continue;
    const stack = stackOf(one), at = `${stack}.${one.layer}`;
    if (!found.has(at)) found.set(at, { stack, layer: one.layer, ops: [] });
    found.get(at)!.ops.push(one);
  }
  return [...found.values()];
});

/** Pieces of the tokens that run along a side of an operation; null where the side has no tokens. */
export function along(op: Op, axis: string) {
  if (axis !== "T" && axis !== "S") return null;
  const list = op.of_source.includes(axis) ? sourceTokens.value : tokens.value;
  return list.length === op.shape[op.axes.indexOf(axis)] ? list : null;
}

/** The logits over the words, where there are any. */
export function headOf(made: Run): Op | undefined {
  return made.plan.find((op) => (op.id === "logits" || op.names.includes("logits")) && op.axes.includes("V"));
}

/** Where the answer `token` at a place has its arithmetic: its probability, else its logit. */
export function answerCell(made: Run, place: number, token: number): string {
  const head = headOf(made);
  return ops.value.has("probs") || !head ? `probs[${place},${token}]` : at(head, place, token);
}

let asking: AbortController | null = null;

export function request(edits: readonly string[] = state.edits.value, text = state.prompt.value, model = state.model.value) {
  const body: Record<string, unknown> = { model, cut: true };
  if (state.ids.value) body.ids = state.ids.value;
  else body.text = text;
  const able = model === state.model.value ? card.value : models.value?.find((one) => one.name === model);
  if (able?.abilities.source) body.source = state.source.value || text;
  if (edits.length) body.edits = edits;
  return body;
}

/** While the example of the build is shown: the model that will read in its place, and what is done when it has. */
export const stand: { in: { model: () => Promise<string>; done: () => void } | null } = { in: null };

/** Run the model on the text in the box; the latest request wins. */
export async function submit(): Promise<void> {
  asking?.abort();
  const mine = (asking = new AbortController());
  busy.value = true;
  failure.value = "";
  try {
    const before = stand.in, model = before ? await before.model() : state.model.value;
    if (asking !== mine) return;
    const made = await transport.post<Run>("api/runs", request(undefined, undefined, model), mine.signal);
    if (asking !== mine) return;
    batch(() => {
      before?.done();
      state.model.value = model;
      run.value = made;
      nameRun(made);
      const length = made.tokens.length;
      if (state.query.value !== null && state.query.value >= length) state.query.value = null;
      if (state.key.value !== null && state.key.value >= Math.max(length, made.source_tokens?.length ?? 0)) state.key.value = null;
      const known = new Set(made.plan.map((one) => one.id));
      if (state.op.value && !known.has(state.op.value)) state.op.value = "";
    });
    check(made).catch(() => {}); // a run that is no longer there has none
    state.announcement.value = `${made.tokens.length} tokens, ${made.ms.toFixed(0)} milliseconds.`;
  } catch (error) {
    if (asking !== mine || (error as Error).name === "AbortError") return;
    const example = error instanceof Refused && !state.ids.value && state.prompt.value === FIRST; // the reader did not write it
    failure.value = (example ? "The example's text does not suit this model. Type a text of your own. " : "") + (error as Error).message;
  } finally {
    if (asking === mine) busy.value = false;
  }
}

/** The check of the run on the page, which comes after its first picture. */
export const checked = signal<{ run: string; difference: number } | null>(null);
export const AFTER_MS = 300; // by then a screen has asked for its own numbers, and nothing goes before them

async function check(made: Run): Promise<void> {
  await new Promise((done) => setTimeout(done, AFTER_MS));
  if (run.value !== made || made.check.captured_vs_fast_max_abs !== null) return;
  const told = await transport.json<Run["check"]>(`api/runs/${made.run}/check`);
  checked.value = { run: made.run, difference: told.captured_vs_fast_max_abs! };
}

/** Another run beside the one on the page, for a "what if": the same text with other edits. */
export function sibling(edits: readonly string[], text?: string): Promise<Run> {
  return transport.post<Run>("api/runs", request(edits, text)).then((made) => (nameRun(made), made));
}

// ------------------------------------------------------------------------------------- values

export interface Values {
  data: Float32Array | Uint8Array;
  /** What an entry of `data` stands for: itself, but for u8. */
  value: (stored: number) => number;
  shape: number[]; // what came
  full: number[]; // what it is of: differs where `pooled`
  min: number;
  max: number;
  pooled: boolean;
  map: string; // lin or sqrt, of u8
}

const LIMIT = 96;
const kept = new Map<string, Promise<any>>();

function once<T>(path: string, make: () => Promise<T>): Promise<T> {
  const known = kept.get(path);
  if (known) {
    kept.delete(path);
    kept.set(path, known);
    return known;
  }
  const made = make();
  kept.set(path, made);
  made.catch(() => kept.delete(path));
  while (kept.size > LIMIT) kept.delete(kept.keys().next().value!);
  return made;
}

export interface Asked {
  as?: "f32" | "f16" | "u8";
  pool?: string;
  map?: "lin" | "sqrt";
  range?: string;
}

/** The values at an address of a run, exact where they fit the bound of one answer, else pooled by their maximum. */
export function values(runId: string, address: string, how: Asked = {}): Promise<Values> {
  const query = new URLSearchParams({ address, as: how.as ?? "f32" });
  if (how.pool) query.set("pool", how.pool);
  if (how.map) query.set("map", how.map);
  if (how.range) query.set("range", how.range);
  return fetched(`api/runs/${runId}/t?${query}`);
}

function fetched(path: string): Promise<Values> {
  return once(path, async () => {
    try {
      return unpack(await transport.bytes(path));
    } catch (error) {
      if (error instanceof Refused && error.status === 413 && error.details.pooled) return fetched(error.details.pooled);
      throw error;
    }
  });
}

function unpack(buffer: ArrayBuffer): Values {
  const { metadata, tensors } = read(buffer);
  const one = tensors.values;
  const full = metadata.shape ? (JSON.parse(metadata.shape) as number[]) : one.shape;
  const data = one.data instanceof Int32Array ? Float32Array.from(one.data) : one.data;
  const pooled = !!metadata.pool, min = Number(metadata.min), max = Number(metadata.max);
  return { value: decoder(data, metadata, min, max), data, shape: one.shape, full, min, max, pooled, map: metadata.map ?? "lin" };
}

/** u8 as numbers (sight/wire.py): a share of the range, or its root; 0 is what is not finite where there is a hole. */
function decoder(data: Float32Array | Uint8Array, metadata: Record<string, string>, min: number, max: number): (stored: number) => number {
  if (data instanceof Float32Array) return (v) => v;
  const table = Float32Array.from({ length: 256 }, (_, q) => {
    if (metadata.hole === "1" && q === 0) return -Infinity;
    const share = metadata.hole === "1" ? (q - 1) / 254 : q / 255;
    return min + (max - min) * (metadata.map === "sqrt" ? share * share : share);
  });
  return (stored) => table[stored];
}

const UNREAL = new Set(["NaN", "Infinity", "-Infinity"]);
const TOLD = new Set(["value", "recomputed", "difference"]);

/** Of a cell's numbers those that are not finite, which JSON holds by their names. */
function numbered<T>(told: T): T {
  const all = told as Record<string, any>;
  for (const [key, one] of Object.entries(all)) {
    if (one && typeof one === "object") numbered(one);
    else if (UNREAL.has(one) && (TOLD.has(key) || !("address" in all || "term" in all))) all[key] = Number(one);
  }
  return told;
}

export function explain(runId: string, address: string, terms = 64): Promise<Cell> {
  const path = `api/runs/${runId}/cell?${new URLSearchParams({ address, terms: String(terms) })}`;
  return once(path, async () => numbered(await transport.json<Cell>(path)));
}

/** The logits of one position over the whole vocabulary: of all ids that are tokens. */
export function logits(runId: string, position = -1): Promise<Float32Array> {
  const made = run.value, head = !transport.live && made?.run === runId ? headOf(made) : undefined;
  if (head && head.id !== "logits") return values(runId, at(head, position)).then((one) => one.data as Float32Array);
  const path = `api/runs/${runId}/logits?position=${position}`;
  return once(path, async () => {
    const { tensors, metadata } = read(await transport.bytes(path));
    return (tensors.logits.data as Float32Array).subarray(0, Number(metadata.known ?? Infinity));
  });
}

export function thumbs(runId: string, from: number, to: number, px = 48, kind = "pattern") {
  const path = `api/runs/${runId}/thumbs?kind=${kind}&px=${px}&layers=${from}:${to}`;
  return once(path, async () => read(await transport.bytes(path)));
}

/** The pieces of a model's vocabulary, once: bytes by id. */
export function vocabulary(name: string): Promise<Uint8Array[]> {
  const path = `api/vocab/${encodeURIComponent(name)}`;
  return once(path, async () => {
    const raw = await transport.bytes(path), look = new DataView(raw), words: Uint8Array[] = [];
    for (let at = 0; at + 4 <= raw.byteLength; ) {
      const length = look.getUint32(at, true);
      words.push(new Uint8Array(raw, at + 4, length));
      at += 4 + length;
    }
    return words;
  });
}

export interface Loaded<T> {
  data: T | null;
  error: string;
  loading: boolean;
}

/** What a promise gives, for a component; what was there before stays until the new is there. */
export function useLoaded<T>(make: () => Promise<T> | null, on: readonly unknown[]): Loaded<T> {
  const [now, set] = useState<Loaded<T>>({ data: null, error: "", loading: true });
  useEffect(() => {
    let mine = true;
    const made = make();
    if (!made) {
      set({ data: null, error: "", loading: false });
      return;
    }
    set((before) => ({ data: before.data, error: "", loading: true }));
    made.then(
      (data) => mine && set({ data, error: "", loading: false }),
      (error) => mine && set({ data: null, error: (error as Error).message, loading: false }),
    );
    return () => {
      mine = false;
    };
  }, on);
  return now;
}
