// Byte-level BPE, as tokenizer.json has it: the text in words, each word's bytes merged pair by pair, the earliest merge first.

export interface Model {
  vocab: Record<string, number>; // by the letters that stand for bytes
  merges: ([string, string] | string)[];
  patterns: string[]; // that cut the text, in order
  before: number[]; // ids that every text begins and ends with
  after: number[];
}

export interface Encoded {
  id: number;
  bytes: Uint8Array;
  start: number; // in characters of the text
  end: number;
}

const SPACE = "\\t-\\r\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // Unicode's, where JavaScript's \s differs

/** The letters of the 256 bytes (GPT-2): printable ones stand for themselves. */
export function letters(): string[] {
  const printable = (one: number) => (one >= 33 && one <= 126) || (one >= 161 && one <= 172) || one >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(printable(byte) ? byte : next++));
}

export class Tokenizer {
  private readonly ranks = new Map<string, number>();
  private readonly letter = letters();
  private readonly byte = new Map(letters().map((one, byte) => [one, byte]));
  private readonly patterns: RegExp[];
  private readonly words = new Map<string, string[]>();

  constructor(readonly model: Model) {
    model.merges.forEach((pair, rank) => this.ranks.set(Array.isArray(pair) ? pair.join(" ") : pair, rank));
    this.patterns = model.patterns.map((one) => new RegExp(one.replaceAll("[^\\s", `[^${SPACE}`).replaceAll("\\s", `[${SPACE}]`).replaceAll("\\S", `[^${SPACE}]`), "gu"));
  }

  private cut(text: string): string[] {
    let parts = [text];
    for (const pattern of this.patterns)
      parts = parts.flatMap((part) => {
        const out: string[] = [];
        let end = 0;
        for (const match of part.matchAll(pattern)) {
          if (match.index > end) out.push(part.slice(end, match.index));
          if (match[0]) out.push(match[0]);
          end = match.index + match[0].length;
        }
        if (end < part.length) out.push(part.slice(end));
        return out;
      });
    return parts;
  }

  private merged(word: string): string[] {
    const known = this.words.get(word);
    if (known) return known;
    const parts = Array.from(new TextEncoder().encode(word), (byte) => this.letter[byte]);
    for (;;) {
      let best = Infinity, at = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) break;
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
    this.words.set(word, parts);
    return parts;
  }

  bytes(piece: string): Uint8Array {
    return Uint8Array.from(piece, (one) => this.byte.get(one)!);
  }

  encode(text: string): Encoded[] {
    const out: Encoded[] = [];
    let done = 0; // characters of the text
    for (const word of this.cut(text)) {
      const characters = Array.from(word), starts = characters.flatMap((one, at) => Array(new TextEncoder().encode(one).length).fill(at));
      let byte = 0;
      for (const piece of this.merged(word)) {
        const bytes = this.bytes(piece), first = byte;
        byte += bytes.length;
        out.push({ id: this.model.vocab[piece], bytes, start: done + starts[first], end: done + starts[byte - 1] + 1 });
      }
      done += characters.length;
    }
    return out;
  }
}
