// How numbers and pieces of text are written; nothing is rounded away where it is stored, only where it is shown.

/** A number with at most `digits` significant digits, a true minus sign, and words for what is no number. */
export function number(v: number | null | undefined, digits = 5): string {
  if (v === null || v === undefined) return "none";
  if (Number.isNaN(v)) return "not a number";
  if (v === Infinity) return "+∞";
  if (v === -Infinity) return "−∞";
  if (Number.isInteger(v) && Math.abs(v) < 1e7) return String(v).replace("-", "−");
  const size = Math.abs(v);
  const text = size !== 0 && (size < 1e-4 || size >= 1e7) ? v.toExponential(Math.max(0, digits - 3)) : String(Number(v.toPrecision(digits)));
  return text.replace("-", "−").replace("e+", "e").replace("e-", "e−");
}

/** A number in at most `room` characters: with fewer digits, then as a power of ten; never nothing, which would read as 0. */
export function fitted(v: number, room: number): string {
  if (Number.isNaN(v)) return "NaN";
  const bare = v.toExponential(0).replace("e+", "e").replace(/-/g, "−");
  return [...[3, 2, 1].map((digits) => number(v, digits)), bare].find((one) => one.length <= room) ?? (Math.abs(v) < 1 ? "≈0" : v < 0 ? "≪0" : "≫0");
}

export function signed(v: number | null, digits = 5): string {
  return v !== null && v > 0 ? `+${number(v, digits)}` : number(v, digits);
}

export function percent(p: number): string {
  if (p >= 0.9995 && p < 1.0005) return "100 %";
  const v = 100 * p;
  return `${v >= 10 ? v.toFixed(1) : v >= 0.1 ? v.toFixed(2) : v === 0 ? "0" : v < 1e-3 ? v.toExponential(0) : v.toFixed(3)} %`;
}

/** A change of a probability in percentage points, with its sign. */
export function points(change: number): string {
  return `${change < 0 ? "−" : "+"}${percent(Math.abs(change)).replace(" %", "")} points`;
}

export function size(bytes: number): string {
  return bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

export function count(n: number): string {
  return n < 1e4 ? String(n) : n < 1e6 ? `${(n / 1e3).toFixed(1)} k` : n < 1e9 ? `${(n / 1e6).toFixed(1)} M` : `${(n / 1e9).toFixed(2)} G`;
}

/** What of a text cannot be seen is written so that it can: space ·, newline ↵, tab ⇥. */
export function visible(text: string): string {
  return text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/\r/g, "␍").replace(/[\u0000-\u001f\u007f]/g, (c) => String.fromCharCode(0x2400 + (c.charCodeAt(0) & 31)));
}

/** A token as its tokenizer writes it: the marks that stand for a space or a line's end are shown as those are. */
export function readable(token: string): string {
  return visible(token).replace(/[▁Ġ]/g, "·").replace(/Ċ/g, "↵");
}
