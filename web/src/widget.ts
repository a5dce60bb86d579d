// What a notebook runs of a live page (anywidget): a frame with the page, and messages between it and the kernel.
import type { Answered } from "./core/kernel";

interface Model {
  get(name: string): any;
  send(message: unknown): void;
  on(event: "msg:custom", hear: (message: any, buffers: DataView[]) => void): void;
  off(event: "msg:custom", hear: (message: any, buffers: DataView[]) => void): void;
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const frame = document.createElement("iframe");
  const view = crypto.getRandomValues(new Uint32Array(2)).join("-"); // the same page may be shown twice
  let port: MessagePort | null = null;
  const hear = ({ to, ...told }: Answered & { to: string }, buffers: DataView[]) => {
    const one = buffers?.[0];
    const bytes = one && new Uint8Array(one.buffer as ArrayBuffer, one.byteOffset, one.byteLength).slice();
    if (to === view) port?.postMessage({ ...told, bytes });
  };
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.title = "glassformer";
  frame.style.cssText = `width:100%;height:${model.get("height")}px;border:1px solid #8888;border-radius:6px`;
  frame.srcdoc = model.get("page");
  frame.addEventListener("load", () => {
    const { port1, port2 } = new MessageChannel();
    port = port1;
    port.onmessage = ({ data }) => model.send({ ...data, to: view });
    frame.contentWindow!.postMessage("glassformer", "*", [port2]);
  });
  model.on("msg:custom", hear);
  el.append(frame);
  return () => {
    model.off("msg:custom", hear);
    port?.close();
  };
}

export default { render };
