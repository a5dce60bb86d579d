/** A matrix to take away: CSV, SVG (vector cells while they are few, else an image), PNG with its words and legend. */
import { type Lut, css, inkOn } from "./palettes";

export interface Grid {
  /** The value's address; it is the title and the file's name. */
  address: string;
  rows: number;
  cols: number;
  /** rows x cols, row by row. */
  values: ArrayLike<number>;
  rowWords: readonly string[];
  colWords: readonly string[];
  /** What the first and the last colour stand for. */
  min: number;
  max: number;
}

/** Up to so many cells a side are drawn as rectangles in an SVG. */
export const VECTOR = 64;

const xml = (text: string): string =>
  text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]!).replace(/[\u0000-\u001f]/g, "");
const field = (text: string): string => (/[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);

/** Every number with all its digits, the words as headings. */
export function csv(grid: Grid): string {
  const lines = [["", ...grid.colWords.map(field)].join(",")];
  for (let row = 0; row < grid.rows; row++) {
    const cells = Array.from({ length: grid.cols }, (_, col) => String(grid.values[row * grid.cols + col]));
    lines.push([field(grid.rowWords[row] ?? String(row)), ...cells].join(","));
  }
  return lines.join("\n") + "\n";
}

/** The colour's place in a table of 256. */
export function level(value: number, min: number, max: number): number {
  if (!(max > min) || Number.isNaN(value)) return 0;
  return Math.min(255, Math.max(0, Math.round(((value - min) / (max - min)) * 255)));
}

const CELL = 16;
const LEFT = 96;
const TOP = 96;

/** A picture for a paper; `image` (a data URL of the cells) takes the place of rectangles when there are many. */
export function svg(grid: Grid, table: Lut, image?: string): string {
  const size = image ? Math.max(1, Math.min(CELL, 1024 / Math.max(grid.rows, grid.cols))) : CELL;
  const width = LEFT + grid.cols * size + 16;
  const height = TOP + grid.rows * size + 56;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" font-family="sans-serif" font-size="11">`,
    `<title>${xml(grid.address)}</title><rect width="100%" height="100%" fill="#fff"/><text x="4" y="14" font-weight="bold">${xml(grid.address)}</text>`,
  ];
  if (image) {
    parts.push(`<image x="${LEFT}" y="${TOP}" width="${grid.cols * size}" height="${grid.rows * size}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${image}"/>`);
  } else {
    for (let row = 0; row < grid.rows; row++)
      for (let col = 0; col < grid.cols; col++) {
        const value = Number(grid.values[row * grid.cols + col]);
        const told = `${grid.rowWords[row] ?? row} / ${grid.colWords[col] ?? col}: ${value}`;
        const fill = Number.isFinite(value) ? css(table[level(value, grid.min, grid.max)]!) : "#999";
        parts.push(`<rect x="${LEFT + col * size}" y="${TOP + row * size}" width="${size}" height="${size}" fill="${fill}"><title>${xml(told)}</title></rect>`);
      }
  }
  if (size >= 9) {
    grid.rowWords.forEach((word, row) => parts.push(`<text x="${LEFT - 6}" y="${TOP + (row + 0.72) * size}" text-anchor="end">${xml(word)}</text>`));
    grid.colWords.forEach((word, col) => parts.push(`<text transform="translate(${LEFT + (col + 0.72) * size} ${TOP - 6}) rotate(-60)">${xml(word)}</text>`));
  }
  const below = TOP + grid.rows * size + 16;
  for (let at = 0; at < 64; at++) parts.push(`<rect x="${LEFT + at * 2}" y="${below}" width="2.2" height="10" fill="${css(table[at * 4]!)}"/>`);
  parts.push(`<text x="${LEFT}" y="${below + 24}">${grid.min}</text><text x="${LEFT + 128}" y="${below + 24}" text-anchor="end">${grid.max}</text></svg>`);
  return parts.join("\n");
}

/** The cells alone, one pixel each, scaled up without blur; `hatched` cells (not finite) are grey. */
export function cells(grid: Grid, table: Lut): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = grid.cols;
  canvas.height = grid.rows;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(grid.cols, grid.rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let at = 0; at < pixels.length; at++) {
    const value = Number(grid.values[at]);
    pixels[at] = Number.isFinite(value) ? table[level(value, grid.min, grid.max)]! : 0xff999999;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Twice the size on a screen, with words, title and legend. */
export function png(grid: Grid, table: Lut): Promise<Blob> {
  const size = Math.max(1, Math.min(CELL, Math.floor(1600 / Math.max(grid.rows, grid.cols))));
  const canvas = document.createElement("canvas");
  const width = LEFT + grid.cols * size + 16;
  const height = TOP + grid.rows * size + 56;
  canvas.width = width * 2;
  canvas.height = height * 2;
  const context = canvas.getContext("2d")!;
  context.scale(2, 2);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  context.drawImage(cells(grid, table), LEFT, TOP, grid.cols * size, grid.rows * size);
  context.fillStyle = "#000";
  context.font = "bold 11px sans-serif";
  context.fillText(grid.address, 4, 14, width - 8);
  context.font = "11px sans-serif";
  if (size >= 9) {
    context.textAlign = "end";
    grid.rowWords.forEach((word, row) => context.fillText(word, LEFT - 6, TOP + (row + 0.72) * size, LEFT - 10));
    context.textAlign = "start";
    grid.colWords.forEach((word, col) => {
      context.save();
      context.translate(LEFT + (col + 0.72) * size, TOP - 6);
      context.rotate(-Math.PI / 3);
      context.fillText(word, 0, 0, 90);
      context.restore();
    });
    if (size >= CELL && grid.rows * grid.cols <= 400) numbers(context, grid, table, size);
  }
  const below = TOP + grid.rows * size + 16;
  for (let at = 0; at < 64; at++) {
    context.fillStyle = css(table[at * 4]!);
    context.fillRect(LEFT + at * 2, below, 2.2, 10);
  }
  context.fillStyle = "#000";
  context.fillText(String(grid.min), LEFT, below + 24);
  context.textAlign = "end";
  context.fillText(String(grid.max), LEFT + 128, below + 24);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("The browser made no picture."))), "image/png"));
}

function numbers(context: CanvasRenderingContext2D, grid: Grid, table: Lut, size: number): void {
  context.save();
  context.font = "6px sans-serif";
  context.textAlign = "center";
  for (let row = 0; row < grid.rows; row++)
    for (let col = 0; col < grid.cols; col++) {
      const value = Number(grid.values[row * grid.cols + col]);
      if (!Number.isFinite(value)) continue;
      context.fillStyle = inkOn(table[level(value, grid.min, grid.max)]!);
      context.fillText(value.toPrecision(2), LEFT + (col + 0.5) * size, TOP + (row + 0.65) * size, size - 1);
    }
  context.restore();
}

/** Hand a file to the reader; `address` becomes a name that every system takes. */
export function save(content: Blob | string, address: string, ending: string, type = "text/plain"): void {
  const blob = typeof content === "string" ? new Blob([content], { type: `${type};charset=utf-8` }) : content;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${address.replace(/[^\w.-]+/g, "_").replace(/_+$/, "")}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** PNG, SVG or CSV of a matrix as a file. */
export async function takeOut(grid: Grid, table: Lut, as: "png" | "svg" | "csv"): Promise<void> {
  if (as === "csv") return save(csv(grid), grid.address, "csv", "text/csv");
  if (as === "png") return save(await png(grid, table), grid.address, "png");
  const small = grid.rows <= VECTOR && grid.cols <= VECTOR;
  save(svg(grid, table, small ? undefined : cells(grid, table).toDataURL()), grid.address, "svg", "image/svg+xml");
}
