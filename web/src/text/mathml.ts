/** A few words of MathML: equations are written once, as trees, and need no library when the page runs. */

export interface Maths {
  tag: string;
  children: (Maths | string)[];
}

const made = (tag: string, ...children: (Maths | string)[]): Maths => ({ tag, children });
const row = (parts: readonly Maths[]): Maths => (parts.length === 1 ? parts[0] : made("mrow", ...parts));

/** A variable (italic when it is one letter), a number, a sign, plain words. */
export const v = (name: string): Maths => made("mi", name);
export const n = (number: number | string): Maths => made("mn", String(number));
export const o = (sign: string): Maths => made("mo", sign);
export const words = (text: string): Maths => made("mtext", text);
export const seq = (...parts: Maths[]): Maths => row(parts);
export const sub = (base: Maths, ...below: Maths[]): Maths => made("msub", base, row(below));
export const sup = (base: Maths, ...above: Maths[]): Maths => made("msup", base, row(above));
export const frac = (top: Maths, below: Maths): Maths => made("mfrac", top, below);
export const root = (inside: Maths): Maths => made("msqrt", inside);
export const paren = (...inside: Maths[]): Maths => row([o("("), ...inside, o(")")]);
export const sum = (over: Maths): Maths => made("munder", o("∑"), over);
export const cases = (...rows: readonly (readonly [Maths, Maths])[]): Maths =>
  row([o("{"), made("mtable", ...rows.map(([is, when]) => made("mtr", made("mtd", is), made("mtd", when))))]);
export const math = (...parts: Maths[]): Maths => row(parts);

/** As text, for a label or a test. */
export const spoken = (maths: Maths | string): string => (typeof maths === "string" ? maths : maths.children.map(spoken).join(" "));
