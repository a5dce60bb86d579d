// The page inside a notebook: requests go as messages to the kernel (src/widget.ts, page/live.py), which answers as a server would.

/** What the page was opened with, in a script element of the document; null on any other page. */
export function opened(): { model: string; text: string; source: string; ids: number[]; view: string } | null {
  const element = document.getElementById("glassformer-live");
  return element?.textContent ? JSON.parse(element.textContent) : null;
}

export interface Answered {
  id: number;
  status?: number; // of the first message of an answer
  more: boolean;
  bytes?: Uint8Array<ArrayBuffer>;
}

/** The port that the notebook's side gives once this frame has loaded. */
export function port(): Promise<MessagePort> {
  return new Promise((done) => {
    addEventListener("message", function hear(event) {
      if (event.source !== parent || !event.ports.length) return;
      removeEventListener("message", hear);
      done(event.ports[0]);
    });
  });
}

/** `fetch` over that port. `silent` is told when the kernel has kept a request waiting, and when it has answered. */
export function asking(port: MessagePort, silent: (waits: boolean) => void, after = 5000): typeof fetch {
  const waiting = new Map<number, (answer: Answered) => void>();
  let last = 0;
  port.onmessage = ({ data }) => waiting.get(data.id)?.(data);
  return (path, init = {}) =>
    new Promise((answer, fail) => {
      const id = ++last, stop = () => void (port.postMessage({ id, cancel: true }), end());
      const end = () => (clearTimeout(timer), waiting.delete(id));
      const timer = setTimeout(() => silent(true), after);
      let body!: ReadableStreamDefaultController<Uint8Array>;
      const read = new ReadableStream<Uint8Array>({ start: (made) => void (body = made), cancel: stop });
      waiting.set(id, (told) => {
        clearTimeout(timer);
        silent(false);
        if (told.status) answer(new Response(read, { status: told.status }));
        if (told.bytes?.length) body.enqueue(told.bytes);
        if (!told.more) end(), body.close();
      });
      init.signal?.addEventListener("abort", () => {
        if (!waiting.has(id)) return;
        const gone = new DOMException("Nobody waits for it.", "AbortError");
        stop();
        fail(gone);
        body.error(gone);
      });
      port.postMessage({ id, method: init.method ?? "GET", path: String(path), body: init.body ?? "" });
    });
}
