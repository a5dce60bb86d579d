/** Colours for numbers: tables of 256, as canvas pixels (little-endian ABGR), and eight for kinds of things.
 *
 *  Cividis (Nunez, Anderton, Renslow 2018) grows evenly in lightness and reads the same with and without red and
 *  green; the diverging one has grey at zero; the eight are those of Okabe and Ito. In the light theme cividis is
 *  reversed and begins with paper: nothing is the ground's colour, and more is always farther from it; so zero is dark
 *  where the ground is.
 */

export type Rgb = readonly [number, number, number];
export type Lut = Uint32Array;
export type PaletteName = "sequential" | "diverging";

const CIVIDIS = "00224e 002e6a 1a386f 32436d 434e6c 535a6d 61656f 6f7073 7d7c78 8c8878 9b9476 aba072 bcae6c cdbb63 dec958 f0d846 fee838";
const PAPER = "faf9f5 f0e5bd dccb7c c3b36b a89e75 8c8878 757775 61656f 4b546c 32436d 0f336f 00224e";
const DIVERGING = "2166ac 4a84bd 7aa5cf aac5df d3dde6 e2e2e2 ead9c8 e5bd93 d99c5d c87a2c b35806";
const DIVERGING_DARK = "a6d0f7 78aee0 4f8cc4 386a99 354d66 3a3a3e 61503c 8f6230 bb7629 e0934a ffbd80";
/** Blue, vermilion, bluish green, reddish purple, orange, sky blue, yellow, black. */
export const CATEGORIES: readonly string[] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#000000"];
/** The same where the ground is dark: none of them darker than it can bear. */
export const CATEGORIES_DARK: readonly string[] = ["#56b4e9", "#f08a4b", "#2fc39a", "#dd9cc0", "#e69f00", "#8fb8ff", "#f0e442", "#dddddd"];
export const ROLES: Readonly<Record<"q" | "k" | "v", string>> = { q: "#0072b2", k: "#d55e00", v: "#009e73" };

export function rgbOf(hex: string): Rgb {
  const number = parseInt(hex.replace("#", ""), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

/** The colour at `share` (0 to 1) of stops at equal distances. */
export function between(stops: readonly Rgb[], share: number): Rgb {
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(place));
  const part = place - low;
  const [a, b] = [stops[low]!, stops[low + 1]!];
  return [0, 1, 2].map((at) => Math.round(a[at]! + (b[at]! - a[at]!) * part)) as unknown as Rgb;
}

const parsed = (text: string): Rgb[] => text.split(" ").map(rgbOf);
const made = new Map<string, Lut>();

/** 256 colours as pixels for `Uint32Array` on an `ImageData`; the same table each time it is asked for. */
export function lut(name: PaletteName, dark: boolean): Lut {
  const key = `${name} ${dark}`;
  let table = made.get(key);
  if (!table) {
    const stops = parsed(name === "diverging" ? (dark ? DIVERGING_DARK : DIVERGING) : dark ? CIVIDIS : PAPER);
    table = new Uint32Array(256);
    for (let at = 0; at < 256; at++) table[at] = pixel(between(stops, at / 255));
    made.set(key, table);
  }
  return table;
}

export function pixel([r, g, b]: Rgb): number {
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

export function css(pixelValue: number): string {
  return `rgb(${pixelValue & 255} ${(pixelValue >> 8) & 255} ${(pixelValue >> 16) & 255})`;
}

/** WCAG's contrast of two colours, 1 to 21. */
export function contrast(a: Rgb, b: Rgb): number {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x) as [number, number];
  return (light + 0.05) / (dark + 0.05);
}

function luminance(rgb: Rgb): number {
  const [r, g, b] = rgb.map((part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Black or white, whichever reads better on a pixel's colour. */
export function inkOn(pixelValue: number): "#000000" | "#ffffff" {
  const ground: Rgb = [pixelValue & 255, (pixelValue >> 8) & 255, (pixelValue >> 16) & 255];
  return contrast(ground, [0, 0, 0]) >= contrast(ground, [255, 255, 255]) ? "#000000" : "#ffffff";
}
