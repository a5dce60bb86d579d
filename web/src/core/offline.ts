// What a saved file answers beyond what it has word for word: parts of the tensors that it holds, cut, pooled and coded
// as the server does it (sight/wire.py).
import { ids, model, prompt, source } from "./state";
import type { Container } from "./safetensors";
import type { Op } from "./types";

export interface Part {
  data: Float32Array;
  shape: number[];
}

/** The values of one run: its plan, and any tensor of it without the batch row; null where it is not there. */
export interface Held {
  plan: Op[];
  tensor(name: string): Part | null;
}

/** The text of the saved trace, where the link does not say another. */
export function start(held: Container) {
  const said = JSON.parse(held.metadata.start ?? "{}");
  model.value ||= said.model ?? "";
  prompt.value ||= said.text ?? "";
  source.value ||= said.source ?? "";
  if (!prompt.value && !ids.value) ids.value = saved(held)?.tokens.map((one: any) => one.id) ?? null; // of a model that has no words
}

/** JSON of a request that was not foreseen: the saved run for its own text, a cell that was explained; else undefined. */
export function json(held: Container, path: string, body?: any): any {
  const [place, query] = path.split("?", 2);
  if (place === "api/runs" && body) {
    const said = JSON.parse(held.metadata.start ?? "{}"), made = saved(held);
    const same = body.ids ? String(body.ids) === String(made?.tokens.map((one: any) => one.id)) : body.text === said.text;
    return same && !body.edits?.length && (body.source ?? said.source) === said.source ? made : undefined;
  }
  if (place.endsWith("/cell")) {
    const cells = JSON.parse(held.metadata.cells ?? "{}"), address = new URLSearchParams(query).get("address") ?? "";
    return cells[address] ?? cells[address.replace(/\s/g, "").replace("[0,", "[")];
  }
  return undefined;
}

/** The run that a file was saved with, as the server told it. */
export function saved(held: Container): any {
  return JSON.parse(held.metadata.answers ?? "{}")[`GET api/runs/${held.metadata.run?.replace(/"/g, "")}`];
}

/** The values that a file holds. */
export function values(held: Container): Held {
  const plan: Op[] = saved(held)?.plan ?? [];
  return {
    plan,
    tensor(name) {
      const one = held.tensors[name] ?? held.tensors[plan.find((op) => op.names?.includes(name))?.id ?? ""];
      return one ? { data: Float32Array.from(one.data), shape: one.shape } : null;
    },
  };
}

/** Bytes of a part of what is held, as the server would send them; null where it is not held. */
export function bytes(held: Held, path: string): ArrayBuffer | null {
  const [place, query] = path.split("?", 2), asked = new URLSearchParams(query);
  if (place.endsWith("/t")) return part(held, asked);
  if (place.endsWith("/logits")) {
    const all = held.tensor("logits"), at = Number(asked.get("position") ?? -1), made = all && cut(all, [String(at)]);
    return made && written({ logits: made }, { position: String(at) });
  }
  if (place.endsWith("/thumbs")) return thumbs(held, asked);
  return null;
}

function part(held: Held, asked: URLSearchParams): ArrayBuffer | null {
  const match = /^\s*([^[\]]+?)\s*(?:\[([^[\]]*)\])?\s*$/.exec(asked.get("address") ?? "");
  if (!match) return null;
  const found = held.tensor(match[1]);
  const one = found && cut(found, match[2] === undefined ? [] : match[2].split(","));
  if (!one) return null;
  const tiles = asked.get("pool")?.match(/\d+/g)?.map(Number) ?? [], made = tiles.length && one.shape.length ? pooled(one, tiles) : one;
  const facts = { address: match[1], shape: JSON.stringify(one.shape), pool: made.data.length < one.data.length ? asked.get("pool")! : "" };
  const range = asked.get("range")?.split(":").map(Number);
  const told = coded(made, asked.get("as") === "u8", asked.get("map") === "sqrt", range);
  return written({ values: { data: told.data, shape: made.shape } }, { ...told.facts, ...facts });
}

/** The part at an index such as ["1", "3", "0:4"]; null where there is none. */
function cut(one: Part, index: string[]): Part | null {
  if (index.length === one.shape.length + 1 && Number(index[0]) === 0) index = index.slice(1); // the batch row was said
  if (index.length > one.shape.length) return null;
  const kept: number[] = [], places: number[][] = [];
  for (let side = 0; side < one.shape.length; side++) {
    const size = one.shape[side], said = (index[side] ?? ":").trim();
    const turn = (text: string, otherwise: number) => Math.min(size, Math.max(0, text === "" ? otherwise : Number(text) < 0 ? Number(text) + size : Number(text)));
    if (said.includes(":")) {
      const [from, to] = said.split(":"), low = turn(from.trim(), 0), high = turn(to.trim(), size);
      kept.push(Math.max(0, high - low));
      places.push(Array.from({ length: Math.max(0, high - low) }, (_, at) => low + at));
    } else {
      const at = Number(said) < 0 ? Number(said) + size : Number(said);
      if (!(at >= 0 && at < size)) return null;
      places.push([at]);
    }
  }
  let offsets = [0];
  places.forEach((list, side) => {
    const step = one.shape.slice(side + 1).reduce((a, b) => a * b, 1);
    offsets = offsets.flatMap((base) => list.map((at) => base + at * step));
  });
  return { data: Float32Array.from(offsets, (at) => one.data[at]), shape: kept };
}

/** Tiles over the last sides: of each the number furthest from zero. */
export function pooled(one: Part, tiles: number[]): Part {
  const count = Math.min(tiles.length, one.shape.length), last = one.shape.slice(-count), wanted = tiles.slice(-count);
  const [rows, cols] = count === 2 ? last : [1, last[0]], [up, along] = count === 2 ? wanted : [1, wanted[0]];
  const high = Math.min(rows, up), wide = Math.min(cols, along), before = one.data.length / (rows * cols);
  const data = new Float32Array(before * high * wide).fill(-Infinity);
  for (let at = 0; at < before; at++)
    for (let i = 0; i < high; i++)
      for (let j = 0; j < wide; j++) {
        let best = -Infinity;
        for (let r = Math.floor((i * rows) / high); r < Math.floor(((i + 1) * rows) / high); r++)
          for (let c = Math.floor((j * cols) / wide); c < Math.floor(((j + 1) * cols) / wide); c++) {
            const v = one.data[(at * rows + r) * cols + c];
            if (Number.isFinite(v) && (best === -Infinity || Math.abs(v) > Math.abs(best) || (v === -best && v > 0))) best = v;
          }
        data[(at * high + i) * wide + j] = best;
      }
  return { data, shape: [...one.shape.slice(0, -count), ...(count === 2 ? [high, wide] : [wide])] };
}

function coded(one: Part, small: boolean, root: boolean, range?: number[]): { data: Float32Array | Uint8Array; facts: Record<string, string> } {
  let min = Infinity, max = -Infinity, hole = false;
  for (const v of one.data)
    if (!Number.isFinite(v)) hole = true;
    else {
      if (v < min) min = v;
      if (v > max) max = v;
    }
  if (min > max) min = max = 0;
  if (!small) return { data: one.data, facts: { min: String(min), max: String(max), map: "lin", as: "f32", hole: "0" } };
  if (range) [min, max] = range;
  const data = Uint8Array.from(one.data, (v) => {
    if (!Number.isFinite(v)) return 0;
    const share = max > min ? Math.min(1, Math.max(0, (v - min) / (max - min))) : 0, x = root ? Math.sqrt(share) : share;
    return hole ? Math.round(x * 254) + 1 : Math.round(x * 255);
  });
  return { data, facts: { min: String(min), max: String(max), map: root ? "sqrt" : "lin", as: "u8", hole: hole ? "1" : "0" } };
}

function thumbs(held: Held, asked: URLSearchParams): ArrayBuffer | null {
  const kind = asked.get("kind") ?? "pattern", px = Number(asked.get("px") ?? 48);
  const all = held.plan.filter((op) => op.quadratic && op.id.endsWith(`.${kind}`) && op.axes.includes("H"));
  const [from, to] = (asked.get("layers") ?? ":").split(":");
  const made: Record<string, { data: Uint8Array; shape: number[] }> = {}, facts: Record<string, unknown> = {};
  for (const op of all.slice(Number(from || 0), to ? Number(to) : all.length)) {
    const one = held.tensor(op.id);
    if (!one) return null;
    const small = pooled(one, [px, px]), told = coded(small, true, kind === "pattern", kind === "pattern" ? [0, 1] : undefined);
    made[op.id] = { data: told.data as Uint8Array, shape: small.shape };
    facts[op.id] = told.facts;
  }
  return written(made, { layers: JSON.stringify(facts), total: String(all.length), px: String(px) });
}

/** safetensors. */
function written(tensors: Record<string, { data: Float32Array | Uint8Array; shape: number[] }>, metadata: Record<string, string>): ArrayBuffer {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let end = 0;
  for (const [name, { data, shape }] of Object.entries(tensors)) {
    header[name] = { dtype: data instanceof Uint8Array ? "U8" : "F32", shape, data_offsets: [end, end + data.byteLength] };
    end += data.byteLength;
  }
  const text = new TextEncoder().encode(JSON.stringify(header)), room = Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(8 + room + end).fill(32);
  new DataView(out.buffer).setBigUint64(0, BigInt(room), true);
  out.set(text, 8);
  let at = 8 + room;
  for (const { data } of Object.values(tensors)) {
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return out.buffer;
}
