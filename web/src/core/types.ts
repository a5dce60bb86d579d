// What the server says, as the contract has it. Names are Python's.

export interface ModelCard {
  name: string;
  title: string;
  kind: "decoder" | "encoder" | "encoder-decoder" | "recurrent";
  parameters: number;
  dtype: string;
  context: number;
  vocab: number;
  abilities: { generate: boolean; fill: boolean; source: boolean; experts: boolean; pool: boolean; lens: boolean; attention: boolean };
  loaded: boolean;
  unsaved?: string[]; // abilities that the model has and its saved file has not
  labels?: string[];
}

export interface Token {
  id: number;
  bytes: string; // base64: a token may be half a character
  start: number | null;
  end: number | null;
  special: boolean;
  unk: boolean;
}

/** One operation of the plan. `axes`: B batch, T queries, S keys, H heads, K key-value heads, D of a head, C model, F hidden, V words, E experts, k chosen, L labels, N documents. */
export interface Op {
  id: string;
  kind: string;
  layer: number | null;
  in: string[];
  w: Record<string, string>;
  axes: string[];
  shape: number[];
  params: Record<string, number | string | boolean>;
  src: string;
  words?: string;
}

export interface Run {
  run: string;
  model: string;
  digest: string;
  task: string;
  dtype: string;
  streams: { name: string; length: number }[];
  tokens: Token[];
  source_tokens?: Token[];
  plan: Op[];
  kept: { tier: string; bytes: number };
  check: { captured_vs_fast_max_abs: number | null };
  ms: number;
  cut?: string | null; // a sentence, where something of the text, or of a saved file's values, is not there
  left_out?: { tokens: number; source_tokens: number }; // beyond what the model can read
  weights?: Record<string, number[]>; // shape by address
  edits?: string[];
}

export interface Operand {
  address: string;
  value: number | null;
}

/** Explanation.to_dict: one number and the arithmetic behind it. */
export interface Cell {
  address: string;
  kind: string;
  value: number | null;
  dtype: string;
  recomputed: number | null;
  difference: number | null;
  sentence: string;
  place: string;
  equation: string;
  numbers: Record<string, number | null>;
  count: number;
  terms: { term: number; value: number | null; operands: Operand[] }[];
  others: Operand[];
  source: string;
  edited: boolean;
  next?: string[]; // operations that read it
  python?: string;
}

export interface Settings {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  repetition_penalty: number;
}

export interface Generated {
  id: number;
  bytes: string;
  logprob: number;
  top: { id: number; logprob: number; bytes?: string }[];
  ms: number;
  kv_bytes: number;
  special?: boolean;
}
