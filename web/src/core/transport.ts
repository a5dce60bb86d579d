// Three ways to the same answers: a server, a notebook's kernel, or a saved file that holds what was asked before it was saved.
import { asking, opened, port } from "./kernel";
import * as offline from "./offline";
import { read, type Container } from "./safetensors";
import { notice, open } from "./state";

export interface Transport {
  readonly live: boolean;
  /** True where a text of the reader's own can be read: by a server, a kernel or this page itself. */
  readonly reads: boolean;
  json<T>(path: string, signal?: AbortSignal): Promise<T>;
  bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer>;
  post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T>;
  /** Server-sent events of a POST (body given) or a GET; ends when the server ends them or `signal` aborts. */
  stream(path: string, body: unknown | null, onEvent: (data: any, id: string, event: string) => void, signal?: AbortSignal): Promise<void>;
}

/** A request that was refused: one sentence for the reader, and what the server said beside it. */
export class Refused extends Error {
  constructor(readonly status: number, message: string, readonly details: Record<string, any> = {}) {
    super(message);
  }
}

export class HttpTransport implements Transport {
  readonly live = true;
  readonly reads = true;
  private readonly made = new Map<string, unknown>(); // what each run was made of
  private readonly token = new URLSearchParams(location.search).get("token");

  /** `fetch` is the browser's, or a notebook's kernel that answers in its place. */
  constructor(private readonly fetch: typeof globalThis.fetch = (path, init) => globalThis.fetch(path, init), private readonly there = "Is “glassformer page” still running?") {}

  private url(path: string): string {
    return this.token ? `${path}${path.includes("?") ? "&" : "?"}token=${encodeURIComponent(this.token)}` : path;
  }

  private async ask(path: string, init: RequestInit): Promise<Response> {
    let answer: Response;
    try {
      answer = await this.fetch(this.url(path), { ...init, credentials: "same-origin" });
    } catch (error) {
      if ((error as Error).name === "AbortError") throw error;
      throw new Refused(0, `The server does not answer. ${this.there}`);
    }
    if (answer.ok) return answer;
    const made = answer.status === 404 && this.made.get(/^api\/runs\/(r_\w+)\//.exec(path)?.[1] ?? "");
    if (made && !init.signal?.aborted) { // the server began anew, or needed the room: the same request makes the same run
      const again = await this.fetch(this.url("api/runs"), { ...this.sending(made), credentials: "same-origin" });
      if (again.ok) answer = await this.fetch(this.url(path), { ...init, credentials: "same-origin" });
      if (answer.ok) return answer;
    }
    const details = await answer.json().catch(() => ({}));
    throw new Refused(answer.status, details.error ?? `The server refused with status ${answer.status}.`, details);
  }

  async json<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await this.ask(path, { signal })).json();
  }

  async bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    return (await this.ask(path, { signal })).arrayBuffer();
  }

  async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    const told = await (await this.ask(path, this.sending(body, signal))).json();
    if (path === "api/runs") this.made.set(told.run, body);
    return told;
  }

  async stream(path: string, body: unknown | null, onEvent: (data: any, id: string, event: string) => void, signal?: AbortSignal): Promise<void> {
    const answer = await this.ask(path, body === null ? { signal } : this.sending(body, signal));
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let waiting = "";
    for (;;) {
      const { done, value } = await reader.read().catch((error: Error) => {
        throw error.name === "AbortError" ? error : new Refused(0, `The server stopped in the middle of its answer. ${this.there}`);
      });
      waiting += value ?? "";
      const blocks = waiting.split(/\r?\n\r?\n/);
      waiting = done ? "" : blocks.pop()!;
      for (const block of blocks) event(block, onEvent);
      if (done) return;
    }
  }

  private sending(body: unknown, signal?: AbortSignal): RequestInit {
    return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  }
}

function event(block: string, onEvent: (data: any, id: string, event: string) => void) {
  const data: string[] = [];
  let id = "", name = "message";
  for (const line of block.split(/\r?\n/)) {
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    else if (line.startsWith("id:")) id = line.slice(3).trim();
    else if (line.startsWith("event:")) name = line.slice(6).trim();
  }
  if (data.length) onEvent(JSON.parse(data.join("\n")), id, name);
}

/** Answers by request: `GET api/models`, `POST api/runs {"model":..}` (keys of the body in order). */
export class StaticTransport implements Transport {
  readonly live = false;
  readonly reads: boolean = false;
  private readonly answers: Record<string, any>;
  private readonly held: offline.Held;

  /** `trace`: a safetensors file whose metadata has `answers`, JSON of request -> answer or {"tensor": name, "metadata": ..}. */
  constructor(protected readonly trace: Container, private readonly raw: ArrayBuffer) {
    this.answers = JSON.parse(trace.metadata.answers ?? "{}");
    this.held = offline.values(trace);
  }

  protected find(request: string, otherwise?: unknown): any {
    if (request in this.answers) return this.answers[request];
    if (otherwise !== undefined) return otherwise;
    throw new Refused(404, "This saved file does not hold that; open the model with “glassformer page” to see it.");
  }

  async json<T>(path: string, _?: AbortSignal): Promise<T> {
    return this.find(`GET ${path}`, offline.json(this.trace, path));
  }

  async bytes(path: string, _?: AbortSignal): Promise<ArrayBuffer> {
    const made = offline.bytes(this.held, path);
    if (made) return made;
    const { tensor, metadata, base64 } = this.find(`GET ${path}`);
    if (base64) return Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)).buffer;
    return pack(this.raw, tensor, metadata ?? {});
  }

  async post<T>(path: string, body: unknown, _?: AbortSignal): Promise<T> {
    return this.find(`POST ${path} ${canonical(body)}`, offline.json(this.trace, path, body));
  }

  async stream(path: string, body: unknown | null, onEvent: (data: any, id: string, event: string) => void, _?: AbortSignal): Promise<void> {
    const events: any[] = this.find(body === null ? `GET ${path}` : `POST ${path} ${canonical(body)}`);
    events.forEach((one, at) => onEvent(one, String(at), "message"));
  }
}

/** JSON with the keys in order and without what is not given. */
export function canonical(value: unknown): string {
  return JSON.stringify(value, (_, one) =>
    one && typeof one === "object" && !Array.isArray(one)
      ? Object.fromEntries(Object.entries(one).filter(([, v]) => v !== undefined && v !== null).sort(([a], [b]) => (a < b ? -1 : 1)))
      : one);
}

function pack(raw: ArrayBuffer, name: string, metadata: Record<string, string>): ArrayBuffer {
  const length = Number(new DataView(raw).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 8, length)));
  const { dtype, shape, data_offsets } = header[name];
  const bytes = new Uint8Array(raw, 8 + length + data_offsets[0], data_offsets[1] - data_offsets[0]);
  const text = new TextEncoder().encode(JSON.stringify({ __metadata__: metadata, values: { dtype, shape, data_offsets: [0, bytes.length] } }).padEnd(8));
  const padded = Math.ceil(text.length / 8) * 8;
  const out = new Uint8Array(8 + padded + bytes.length).fill(32);
  new DataView(out.buffer).setBigUint64(0, BigInt(padded), true);
  out.set(text, 8);
  out.set(bytes, 8 + padded);
  return out.buffer;
}

/** The trace that was saved with this page, gzip and base64 in a script element; null on a page that a server gave. */
async function saved(): Promise<ArrayBuffer | null> {
  const element = document.getElementById("glassformer-trace");
  if (!element?.textContent) return null;
  return unpacked(Uint8Array.from(atob(element.textContent.trim()), (one) => one.charCodeAt(0)));
}

/** What was gzipped. */
export function unpacked(packed: BlobPart): Promise<ArrayBuffer> {
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

export let transport: Transport;

/** Ask that one from now on. */
export function use(other: Transport): void {
  transport = other;
}

const KERNEL = "Is the notebook's kernel still running?";
const BUSY = "The notebook's kernel has not answered for a while: it runs another cell, or it is gone.";

function silent(waits: boolean) {
  if (waits || notice.value === BUSY) notice.value = waits ? BUSY : "";
}

export async function connect(): Promise<Transport> {
  const raw = await saved();
  const held = raw && read(raw);
  if (held) offline.start(held);
  const here = opened();
  if (here) open(here);
  if (raw && held?.metadata.program) transport = new (await import("../compute/transport")).Computing(held, raw);
  else transport = raw && held ? new StaticTransport(held, raw) : here ? new HttpTransport(asking(await port(), silent), KERNEL) : new HttpTransport();
  return transport;
}
