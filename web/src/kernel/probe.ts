import { luck } from "../core/luck";
import { sample } from "../core/sampler";

// What a canvas shows at a point, for tests and for the reader: __glassformer.probe(x, y) -> {addr, value}.
export interface Probed {
  addr: string;
  value: number;
}

type Probe = (x: number, y: number) => Probed | null;
const probes = new WeakMap<Element, Probe>();

export function probed(canvas: Element, probe: Probe): void {
  probes.set(canvas, probe);
}

/** Repaints of a base canvas and of an overlay; pictures made of numbers. */
export const counters = { repaints: 0, overlays: 0, paints: 0 };

export function install(): void {
  (globalThis as any).__glassformer = {
    counters,
    sample,
    luck,
    probe(x: number, y: number): Probed | null {
      for (const element of document.elementsFromPoint(x, y)) {
        const probe = probes.get(element);
        if (!probe) continue;
        const box = element.getBoundingClientRect();
        return probe(x - box.left, y - box.top);
      }
      return null;
    },
  };
}
