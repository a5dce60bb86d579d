// A saved file that computes: it holds the weights and the recorded functions, and answers for any text as a server would.
import * as offline from "../core/offline";
import { visible } from "../core/format";
import { luck } from "../core/luck";
import { pieces } from "../core/pieces";
import { bytes as decoded, type Container } from "../core/safetensors";
import { sample, softmax, sorted } from "../core/sampler";
import { Refused, StaticTransport } from "../core/transport";
import type { Experts, Lens, Mixture, Run, Token } from "../core/types";
import { cell, type Words } from "./cells";
import { changes } from "./edits";
import { FUNCTIONS } from "./functions";
import { Program, type Pass, type Source } from "./program";
import { Tokenizer } from "./tokenizer";
import type { Tensor } from "./tensors";

const KEPT = 4; // runs
const TOP = 10; // likely tokens beside each that is written
const AHEAD = "open the model with “glassformer page”";

interface Computed {
  run: Run;
  pass: Pass;
  held: offline.Held;
}

const base64 = (raw: Uint8Array) => btoa(String.fromCharCode(...raw));

/** Each mixture's experts with their loads, and each token's choice with its weight (sight/answers.py). */
function experts({ run, held }: Computed): Experts {
  const layers = run.plan.filter((op) => op.kind === "router").map((op): Mixture => {
    const address = op.id.replace(/\.router$/, ""), [chosen, weight, chance] = ["chosen", "weight", "router_probs"].map((name) => held.tensor(`${address}.${name}`)!);
    const rows = (x: offline.Part) => Array.from({ length: x.shape[0] }, (_, t) => Array.from(x.data.subarray(t * x.shape[1], (t + 1) * x.shape[1])));
    const count = chance.shape[1], load = Array.from({ length: count }, (_, e) => chosen.data.reduce((n, one) => n + (one === e ? 1 : 0), 0));
    return { address, layer: op.layer!, experts: count, chosen: rows(chosen), weight: rows(weight), probabilities: rows(chance), load, idle: load.filter((one) => !one).length };
  });
  return { layers, idle: layers.reduce((n, one) => n + one.idle, 0), of: layers.reduce((n, one) => n + one.experts, 0) };
}

export class Computing extends StaticTransport {
  override readonly reads = true;
  private readonly program: Program;
  private readonly source: Source & { words: Words; last: number[]; eos: number | null };
  private readonly template: Run;
  private readonly tokenizer: Tokenizer | null;
  private readonly runs = new Map<string, Computed>();
  private vocabulary: Token[] | null = null;
  private readonly edits: string[] = [];
  private before: Pass | null = null; // of the text that is being written

  constructor(held: Container, raw: ArrayBuffer) {
    super(held, raw);
    this.source = JSON.parse(held.metadata.program);
    this.program = new Program(this.source, held);
    this.template = offline.saved(held);
    this.tokenizer = this.source.tokenizer && new Tokenizer(this.source.tokenizer);
    Object.assign((globalThis as any).__glassformer, { // for tests
      functions: Object.keys(FUNCTIONS),
      lens: (body: any) => this.post(`api/runs/${this.template.run}/lens`, body),
      generate: (body: any, each: (token: any) => void) => this.stream("api/generate", body, each),
    });
  }

  /** The ids that a request is about, and how many of them are beyond what is read. */
  private read(body: any): { tokens: Token[]; beyond: number } {
    const start = JSON.parse(this.trace.metadata.start);
    if (!body.ids && body.text === start.text && (body.source ?? start.source) === start.source) return { tokens: this.template.tokens, beyond: 0 };
    if (this.template.source_tokens && body.source !== (start.source ?? "")) throw new Refused(422, `This page reads its own source alone; ${AHEAD} for others.`);
    let tokens: Token[];
    if (body.ids) tokens = body.ids.map((id: number) => this.token(id));
    else if (this.tokenizer) {
      const { before, after } = this.tokenizer.model, inside = this.tokenizer.encode(String(body.text ?? ""));
      tokens = [...before.map((id) => this.token(id)), ...inside.map((one) => ({ ...this.token(one.id), bytes: base64(one.bytes), start: one.start, end: one.end })), ...after.map((id) => this.token(id))];
    } else throw new Refused(422, `This page does not have the model's tokenizer, so it reads its own text alone; ${AHEAD} for others.`);
    if (!tokens.length) throw new Refused(422, "There is no text; type one.");
    return { tokens: tokens.slice(0, this.source.longest), beyond: Math.max(0, tokens.length - this.source.longest) };
  }

  private token(id: number): Token {
    if (!this.vocabulary) {
      const { base64: packed } = this.find(`GET api/vocab/${encodeURIComponent(this.template.model)}`, { base64: "" }), raw = decoded(packed), look = new DataView(raw.buffer);
      this.vocabulary = [];
      for (let at = 0, length = 0; at + 4 <= raw.length; at += 4 + length) {
        length = look.getUint32(at, true);
        this.vocabulary.push({ id: this.vocabulary.length, bytes: base64(raw.subarray(at + 4, at + 4 + length)), start: 0, end: 0, special: this.source.tokenizer?.special.includes(this.vocabulary.length) ?? false, unk: false });
      }
    }
    return this.vocabulary[id] ?? { id, bytes: "", start: 0, end: 0, special: false, unk: false };
  }

  private inputs(ids: number[]): Record<string, number[]> {
    return this.template.source_tokens ? { source: this.template.source_tokens.map((one) => one.id), tokens: ids } : { tokens: ids };
  }

  private compute(tokens: Token[], beyond: number, edits: string[] = []): Run {
    const ids = tokens.map((one) => one.id), own = !edits.length && String(ids) === String(this.template.tokens.map((one) => one.id)), id = own ? this.template.run : `r_${ids.map((one) => one.toString(16)).join("_")}${edits.map((one) => `_E${this.edit(one)}`).join("")}`;
    const known = this.runs.get(id);
    if (known) return known.run;
    const began = performance.now(), pass = this.program.run(this.inputs(ids), { edits: changes(this.program, edits) }), plan = this.program.plan(pass.lengths), ms = performance.now() - began;
    const bytes = pass.values.slice(this.source.leaves.length).reduce((sum, one) => sum + (one ? 4 * one.data.length : 0), 0);
    const streams = this.template.streams.map((one, i, all) => ({ ...one, length: i === all.length - 1 ? ids.length : one.length }));
    const run: Run = { ...this.template, run: id, tokens, plan, ms, streams, edits, kept: { tier: "full", bytes }, check: { captured_vs_fast_max_abs: own ? this.difference(pass) : null }, cut: null };
    if (beyond) Object.assign(run, { cut: `Of the text the first ${tokens.length} of ${tokens.length + beyond} tokens are read.`, left_out: { tokens: beyond } });
    const held: offline.Held = { plan, tensor: (name) => this.part(pass, name) };
    this.runs.set(id, { run, pass, held });
    while (this.runs.size > KEPT) this.runs.delete(this.runs.keys().next().value!);
    return run;
  }

  /** An edit's number: the order in which edits were asked for. */
  private edit(text: string): number {
    if (!this.edits.includes(text)) this.edits.push(text);
    return this.edits.indexOf(text);
  }

  /** The largest difference of a last logit from those that PyTorch gave for the same text. */
  private difference(pass: Pass): number | null {
    const logits = pass.values[this.program.number.get("logits") ?? -1];
    return logits && this.source.last.length ? Math.max(...this.source.last.map((one, i) => Math.abs(one - logits.data[logits.data.length - this.source.last.length + i]))) : null;
  }

  private part(pass: Pass, name: string): offline.Part | null {
    const number = this.program.number.get(name), x = number === undefined ? undefined : pass.values[number];
    if (!x) return null;
    const batch = this.program.leaf(number!)?.kind !== "weight" && x.shape[0] === 1 && x.shape.length > 1;
    return { data: Float32Array.from(x.data), shape: batch ? x.shape.slice(1) : x.shape };
  }

  private computed(path: string): Computed | undefined {
    const id = /^api\/runs\/(r_\w+)/.exec(path)?.[1];
    if (!id) return undefined;
    if (!this.runs.has(id)) {
      const parts = id.slice(2).split("_"), ids = parts.filter((one) => !one.startsWith("E") || id === this.template.run), edits = parts.filter((one) => !ids.includes(one));
      if (id === this.template.run) this.compute(this.template.tokens, 0);
      else this.compute(ids.map((one) => this.token(parseInt(one, 16))), 0, edits.map((one) => this.edits[Number(one.slice(1))]));
    }
    return this.runs.get(id);
  }

  override async json<T>(path: string): Promise<T> {
    const made = this.computed(path), [place, query] = path.split("?", 2);
    if (!made) return super.json(path);
    if (place.endsWith("/cell")) {
      const asked = new URLSearchParams(query), address = asked.get("address") ?? "", shown = pieces(made.run.tokens), words = pieces(made.run.source_tokens ?? []);
      const piece = (name: string, axis: string, at: number): string | null => {
        if (!this.source.has_words) return null;
        if (axis === "V") return this.word(this.token(at)) || null;
        const source = words.length && (name.startsWith("encoder.") || name.startsWith("source") || (axis === "S" && name.includes(".cross.")));
        return axis === "T" || axis === "S" ? ((source ? words : shown)[at]?.text || null) : null;
      };
      const told = cell(this.program, made.pass, made.run.plan, this.source.words, address, Number(asked.get("terms") ?? 64), piece);
      if (!told) throw new Refused(422, `Nothing has the address “${address}”.`);
      return told as T;
    }
    if (place.endsWith("/experts")) return experts(made) as T;
    if (place.endsWith("/check")) return made.run.check as T;
    return /^api\/runs\/r_\w+$/.test(place) ? (made.run as T) : super.json(path);
  }

  private word(token: Token): string {
    return visible(new TextDecoder().decode(decoded(token.bytes)));
  }

  override async bytes(path: string): Promise<ArrayBuffer> {
    const made = this.computed(path);
    return (made && offline.bytes(made.held, path)) ?? super.bytes(path);
  }

  override async post<T>(path: string, body: any): Promise<T> {
    if (path === "api/runs") {
      const { tokens, beyond } = this.read(body);
      return this.compute(tokens, beyond, body.edits) as T;
    }
    const made = this.computed(path);
    return made && path.endsWith("/lens") ? (this.lens(made, body) as T) : super.post(path, body);
  }

  // ------------------------------------------------------------------------------------ the lens

  /** What the model would say at each depth: its last norm and head on the stream there. */
  private lens({ run, pass }: Computed, body: { positions: number[]; track: (number | string)[]; top: number }): Lens {
    const body_ = run.plan.some((op) => op.id === "decoder.embed") ? "decoder" : "encoder", depths = run.plan.map((op) => op.id).filter((id) => id === `${body_}.embed` || new RegExp(`^${body_}\\.blocks\\.\\d+\\.resid$`).test(id));
    const last = this.program.number.get(depths[depths.length - 1])!, own = pass.values[this.program.number.get("logits")!]!, size = own.shape[own.shape.length - 1];
    const known = Math.min(size, this.source.tokenizer ? Object.keys(this.source.tokenizer.vocab).length + this.source.tokenizer.special.length : size);
    const track = body.track.map((one) => this.tracked(one));
    const rows = depths.map((depth): Tensor => (depth === depths[depths.length - 1] ? own : this.program.rerun(pass, last, pass.values[this.program.number.get(depth)!]!, "logits")));
    const lines = rows.map((x) => body.positions.map((at) => x.data.subarray(at * size, (at + 1) * size) as Float32Array)), chances = lines.map((row) => row.map((line) => softmax(line)));
    const answers = chances[chances.length - 1], top = lines.map((row) => row.map((line) => Array.from(sorted(line.subarray(0, known) as Float32Array).subarray(0, body.top))));
    const logs = (p: Float32Array, q: Float32Array) => p.reduce((sum, one, i) => sum + (one > 0 ? one * Math.log(one / q[i]) : 0), 0);
    return {
      lens: "logit lens", depths, positions: body.positions, tokens: body.positions.map((at) => run.tokens[at].id), pieces: body.positions.map((at) => this.word(run.tokens[at])), length: run.tokens.length,
      top, top_pieces: top.map((row) => row.map((ids) => ids.map((id) => this.word(this.token(id))))), probability: top.map((row, d) => row.map((ids, p) => ids.map((id) => chances[d][p][id]))),
      entropy: chances.map((row) => row.map((p) => -p.reduce((sum, one) => sum + (one > 0 ? one * Math.log(one) : 0), 0))), kl: chances.map((row) => row.map((q, p) => logs(answers[p], q))),
      tracked: track.map((id) => ({ token: id, piece: this.word(this.token(id)), probability: chances.map((row) => row.map((p) => p[id])), rank: lines.map((row) => row.map((line) => line.reduce((n, one) => n + (one > line[id] ? 1 : 0), 1))) })),
      notes: [`Each depth is read through the model's last norm and its head; entropy and KL(own || depth) in nats.`],
    };
  }

  private tracked(word: number | string): number {
    if (typeof word === "number") return word;
    const found = this.tokenizer?.encode(word) ?? [];
    if (found.length !== 1) throw new Refused(422, `“${word}” is ${found.length} tokens of this model; follow one.`);
    return found[0].id;
  }

  // ------------------------------------------------------------------------------------- writing

  override async stream(path: string, body: any, onEvent: (data: any, id: string, event: string) => void, signal?: AbortSignal): Promise<void> {
    if (path !== "api/generate" || this.template.source_tokens) return super.stream(path, body, onEvent, signal);
    const prompt: number[] = body.ids ?? this.read(body).tokens.map((one) => one.id), ids = prompt.slice(), most = Math.min(body.max_new, this.source.longest - ids.length);
    const edits = changes(this.program, body.edits ?? []), draws = luck(body.seed, prompt, Math.max(1, most)), decoder = new TextDecoder(), eos = this.source.eos;
    let finish = most < body.max_new ? "context" : "length", text = "";
    for (let nth = 0; nth < most; nth++) {
      await new Promise((done) => setTimeout(done)); // the page stays alive
      signal?.throwIfAborted();
      const began = performance.now(), pass = this.program.run(this.inputs(ids), { target: "logits", before: this.before, edits }), logits = pass.values[this.program.number.get("logits")!]!;
      this.before = pass;
      const size = logits.shape[logits.shape.length - 1], row = logits.data.subarray(logits.data.length - size) as Float32Array, chosen = sample(row, ids, body.settings, draws[nth]);
      const ends = chosen.token === eos, { bytes, special } = this.token(chosen.token), piece = ends || special ? "" : decoder.decode(decoded(bytes), { stream: true });
      ids.push(chosen.token);
      text += piece;
      const top = Array.from(chosen.order.subarray(0, TOP), (id) => ({ id, logprob: Math.log(chosen.raw[id]) }));
      onEvent({ id: chosen.token, bytes, special, text: piece, logprob: Math.log(chosen.raw[chosen.token]), top, ms: performance.now() - began, kv_bytes: 0 }, String(nth), "message");
      if (ends) {
        finish = "eos";
        break;
      }
    }
    onEvent({ finish, text }, "end", "end");
  }
}
