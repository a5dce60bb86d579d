// The example that comes with the build (benchmarks/example.py): what our own server answered for one text, read by the
// small model of the package. It is on the screen while the server still imports and loads; what it does not hold waits.
import { signal } from "@preact/signals";
import { read } from "./safetensors";
import { canonical, HttpTransport, unpacked } from "./transport";

/** While the example is shown: the model that read it. */
export const prebaked = signal("");

export interface Example {
  model: string;
  text: string;
  /** The bytes of the answer to a request; null where it is not held. */
  answer(request: string): ArrayBuffer | null;
}

export async function example(): Promise<Example | null> {
  try {
    const sent = await fetch("example.trace", { credentials: "same-origin" });
    if (!sent.ok) return null;
    const held = read(await unpacked(await sent.arrayBuffer()));
    const answer = (request: string) => {
      const one = held.tensors[request]?.data;
      return one ? (one.buffer.slice(one.byteOffset, one.byteOffset + one.byteLength) as ArrayBuffer) : null;
    };
    return { model: held.metadata.model, text: held.metadata.text, answer };
  } catch {
    return null;
  }
}

export const json = (data: ArrayBuffer) => JSON.parse(new TextDecoder().decode(data));

/** Answers from the example what it holds; whatever else waits until the server has read the text itself. */
export class Ahead extends HttpTransport {
  constructor(private readonly held: Example, private readonly ready: Promise<void>) {
    super();
  }

  override async json<T>(path: string, signal?: AbortSignal): Promise<T> {
    const held = this.held.answer(`GET ${path}`);
    if (held && path !== "api/models") return json(held);
    if (path.startsWith("api/runs/")) await this.ready;
    return super.json(path, signal);
  }

  override async bytes(path: string, signal?: AbortSignal): Promise<ArrayBuffer> {
    const held = this.held.answer(`GET ${path}`);
    if (held) return held;
    if (path.startsWith("api/runs/")) await this.ready;
    return super.bytes(path, signal);
  }

  override async post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
    if (path.startsWith("api/runs/")) {
      const held = this.held.answer(`POST ${path} ${canonical(body)}`);
      if (held) return json(held);
      await this.ready;
    }
    return super.post(path, body, signal);
  }
}
