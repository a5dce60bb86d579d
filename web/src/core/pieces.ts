// Tokens as a reader sees them. A character may be spread over tokens: then it stands over all of them.
import { visible } from "./format";
import { bytes } from "./safetensors";
import type { Token } from "./types";

export interface Piece {
  at: number; // place in the text
  token: Token;
  text: string; // visible
  of: number; // how many tokens the shown character is spread over, 1 where it is not
  part: number; // which of them this is
}

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function whole(parts: Uint8Array[]): string | null {
  const all = new Uint8Array(parts.reduce((n, one) => n + one.length, 0));
  parts.reduce((at, one) => (all.set(one, at), at + one.length), 0);
  try {
    return strict.decode(all);
  } catch {
    return null;
  }
}

export function pieces(tokens: readonly Token[]): Piece[] {
  const raw = tokens.map((one) => bytes(one.bytes));
  const made: Piece[] = [];
  for (let at = 0; at < tokens.length; ) {
    let of = 1, text = whole([raw[at]]);
    while (text === null && of < 4 && at + of < tokens.length && !tokens[at + of].special) {
      of += 1;
      text = whole(raw.slice(at, at + of));
    }
    if (text === null) {
      of = 1;
      text = Array.from(raw[at], (one) => `⟨${one.toString(16).padStart(2, "0")}⟩`).join("");
    }
    for (let part = 0; part < of; part++) made.push({ at: at + part, token: tokens[at + part], text: visible(text), of, part });
    at += of;
  }
  return made;
}

/** A label of one token alone; a part of a character says which part. */
export function label(piece: Piece | undefined): string {
  if (!piece) return "";
  return piece.of > 1 ? `${piece.text}${"₁₂₃₄"[piece.part]}` : piece.text === "" ? "∅" : piece.text;
}

export interface Stretch {
  start: number; // in characters of the text
  end: number;
  a: number[]; // places of its tokens
  b: number[];
}

/** The text cut where both cut it: the shortest stretches that are whole tokens of `a` and of `b`. */
export function aligned(a: readonly Token[], b: readonly Token[]): Stretch[] {
  const inText = (one: Token) => (one.end ?? 0) > (one.start ?? 0);
  const ends = (tokens: readonly Token[]) => new Set(tokens.filter(inText).map((one) => one.end!));
  const other = ends(b), cuts = [...ends(a)].filter((end) => other.has(end)).sort((x, y) => x - y);
  const made: Stretch[] = cuts.map((end, at) => ({ start: at ? cuts[at - 1] : 0, end, a: [], b: [] }));
  for (const [side, tokens] of [["a", a], ["b", b]] as const) {
    let at = 0;
    tokens.forEach((one, place) => {
      if (!inText(one)) return;
      while (at < made.length && one.end! > made[at].end) at++;
      made[at]?.[side].push(place);
    });
  }
  return made;
}
