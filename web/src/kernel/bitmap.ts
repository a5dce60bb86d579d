// Pictures of numbers, painted once: the same numbers in the same colours at the same size are not painted again, so that
// zooming, dragging and the next head's arrival cost a copy of pixels.
import { counters } from "./probe";

interface Picture {
  key: string;
  table: Uint32Array;
  canvas: HTMLCanvasElement;
}

const kept = new WeakMap<object, Picture>();

/** The picture of `data`, `width` x `height` pixels; `make` gives its colour words where it was not painted so before. */
export function bitmap(data: object, width: number, height: number, table: Uint32Array, how: string, make: () => Uint32Array): HTMLCanvasElement {
  const key = `${width} ${height} ${how}`, known = kept.get(data);
  if (known && known.key === key && known.table === table) return known.canvas;
  counters.paints += 1;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d")!.putImageData(new ImageData(new Uint8ClampedArray(make().buffer as ArrayBuffer), width, height), 0, 0);
  kept.set(data, { key, table, canvas });
  return canvas;
}
