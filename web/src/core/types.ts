// What the server answers, by its paths. Names are Python's. tests/page/test_tensor_replies.py asks a real server for every
// answer of `Answers` and holds it to these types: a field that is not here, or that never comes, fails there.

export interface Answers {
  "GET api/models": ModelCard[];
  "POST api/runs": Run;
  "GET api/runs/{run}": Run;
  "GET api/runs/{run}/check": Run["check"];
  "GET api/runs/{run}/cell": Cell;
  "POST api/runs/{run}/lens": Lens;
  "GET api/runs/{run}/attribution": Attribution;
  "POST api/runs/{run}/circuit": Circuit;
  "GET api/runs/{run}/experts": Experts;
  "GET api/heads/{model}": Heads;
  "POST api/contexts": InContexts;
  "POST api/generate token": Generated;
  "POST api/generate start": { ids: number[]; seed: number; model: string };
  "POST api/generate end": { finish: string; text: string };
  "POST api/beam": { beams: Beam[] };
  "POST api/tokenize": Cut[];
  "POST api/tokenize/steps": Steps;
  "GET api/tokenizers": KnownTokenizer[];
  "GET api/train": Training[];
  "GET api/train/{name}/series": Series;
  "GET api/train/{name}/samples": Sample[];
  "GET api/train/{name}/routing": Routing[];
  "GET api/train/{name}/probe": Probed;
  "POST api/train/{name}/pause": { name: string; asked: boolean };
  "POST api/train/{name}/stop": { name: string; asked: boolean };
  "GET api/events": { cursor: string; trainings: Record<string, Series> };
}

export interface Abilities {
  generate: boolean;
  fill: boolean;
  source: boolean;
  experts: boolean;
  pool: boolean;
  lens: boolean;
  attention: boolean;
  attribution: boolean;
  edits: boolean; // and scores of its heads on random tokens
  chat: boolean; // it has a chat template
}

export interface ModelCard {
  name: string;
  title: string;
  kind: "decoder" | "encoder" | "encoder-decoder" | "recurrent" | "module";
  parameters: number;
  dtype: string | null; // null until it is loaded
  context: number;
  vocab: number;
  abilities: Abilities;
  loaded: boolean;
  labels: string[];
  /** Of a saved file alone: abilities that the model has and the file has not. */
  unsaved?: string[];
}

export interface Token {
  id: number;
  bytes: string; // base64: a token may be half a character
  start: number | null;
  end: number | null;
  special: boolean;
  unk: boolean;
}

/** One operation of the plan. `axes`: B batch, row the side of one text (which addresses name), T queries, S keys, H heads, K key-value heads, D of a head, C model, F hidden, V words, E experts, k chosen, L labels, N documents. */
export interface Op {
  id: string;
  kind: string;
  layer: number | null;
  module: string; // that computes it, where cards fold by modules
  in: string[];
  w: Record<string, string>;
  axes: string[];
  of_source: string[]; // sides along which the source's tokens run
  shape: number[];
  params: Record<string, number | string | boolean>;
  names: string[];
  quadratic: boolean;
  src: string;
  words: string;
}

export interface Run {
  run: string;
  model: string;
  digest: string;
  task: string;
  kind: string;
  abilities: Abilities;
  dtype: string;
  streams: { name: string; length: number }[];
  tokens: Token[];
  source_tokens?: Token[];
  plan: Op[];
  kept: { tier: string; bytes: number };
  check: { captured_vs_fast_max_abs: number | null };
  ms: number;
  cut: string | null; // a sentence, where something of the text, or of a saved file's values, is not there
  left_out?: { tokens: number; source_tokens?: number }; // beyond what the model can read
  weights: Record<string, number[]>; // shape by address
  edits: string[];
  found?: boolean; // it was made before
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
  words: { plain: string; place: string; value: string };
  next: string[]; // operations that read it
  weights: Record<string, string>;
  python: string;
}

/** Lens.to_dict: (depth, position) and (depth, position, nth). */
export interface Lens {
  lens: string;
  depths: string[];
  positions: number[];
  tokens: number[];
  pieces: string[];
  length: number;
  top: number[][][];
  top_pieces: string[][][];
  probability: number[][][];
  entropy: number[][];
  kl: number[][];
  tracked: { token: number; piece: string; probability: number[][]; rank: number[][] }[];
  notes: string[];
}

export interface Attribution {
  token: number;
  piece: string;
  against: number | null;
  against_piece: string | null;
  position: number;
  parts: { kind: string; address: string; value: number; block: number | null; index: number | null }[];
  sum: number;
  logit: number;
  capped: number | null; // after a soft cap, where there is one
  difference: number;
  notes: string[];
  edits: string[];
}

/** `glassformer circuit --json`: the answer first, then each node before what it reads. */
export interface Circuit {
  answer: string;
  words: string[];
  source_words: string[];
  nodes: CircuitNode[];
  edges: CircuitEdge[];
  least: number;
  faithfulness: Faithfulness;
  shares: { circuit: number; without: number };
  difference: number;
}

export interface CircuitNode {
  address: string;
  kind: string;
  text: string;
  value: number;
  sum: number | null;
  head: string | null; // of scores
  block: number | null;
  position: number | null;
}

export interface CircuitEdge {
  writer: string;
  reader: string;
  value: number;
}

export interface Faithfulness {
  nodes: number;
  held_at: string;
  random: number[];
  model: number;
  circuit: number;
  without: number;
  nothing: number;
}

export interface Experts {
  layers: Mixture[];
  idle: number;
  of: number;
}

/** Of each mixture: a row a token, its chosen experts in order of their shares. */
export interface Mixture {
  address: string;
  layer: number;
  experts: number;
  chosen: number[][];
  weight: number[][];
  probabilities: number[][] | null;
  load: number[];
  idle: number;
}

export interface Heads {
  heads: Measured[];
  draws: number;
  length: number;
  seed: number;
}

export interface Measured {
  path: string;
  head: number;
  scores: Record<string, number | null>;
  baseline: Record<string, number>;
  deviation: Record<string, number>;
  even: Record<string, number>;
  labels: string[];
}

/** One word in two texts. */
export interface InContexts {
  word: string;
  texts: string[];
  positions: number[][];
  pieces: string[][];
  depths: string[];
  cosine: number[];
  others: number[];
  notes: string[];
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
  text: string; // that is finished by it
  logprob: number;
  top: { id: number; logprob: number }[];
  ms: number;
  kv_bytes: number;
  special: boolean;
}

export interface Beam {
  tokens: (Token & { logprob: number })[];
  score: number;
  finish: string;
  text: string;
}

export interface KnownTokenizer {
  name: string;
  title: string;
  vocab: number | null;
  available: boolean;
  command?: string;
}

/** A text under a tokenizer. */
export interface Cut {
  name: string;
  vocab: number;
  algorithm: string;
  tokens: Token[];
  round_trip?: boolean;
}

/** How the word that a token stands in came to its pieces. */
export interface Steps {
  word: string;
  algorithm: string;
  start: string[];
  /** Of BPE merges, of WordPiece matches, of Unigram paths. */
  steps: { rank?: number; left?: string; right?: string; pieces?: string[]; rest?: string; tried?: number; piece?: string | null; score?: number }[];
  pieces: string[];
  ids: number[];
  whole: boolean;
  first: number;
  shown: Record<string, string>;
}

export interface Training {
  name: string;
  title: string;
  step: number;
  steps: number | null;
  rows: number;
  age_s: number | null;
  live: boolean;
  done: boolean;
  objective: string | null;
  chance: number | null; // the loss of a guess at random
  stopping: boolean;
  pausing: boolean; // it is asked to
  paused: boolean; // it waits
  samples: number; // bytes of the files: they grow when there is more
  routing: number;
  checkpoints: { step: number; model: string }[];
}

export interface Column {
  min: (number | null)[];
  max: (number | null)[];
  mean: (number | null)[];
}

export interface Series {
  name: string;
  cursor: number;
  since: number;
  reset: boolean;
  turn: number;
  bucket: number;
  first: number[];
  last: number[];
  columns: Record<string, Column>;
}

export interface Sample {
  step: number;
  text: string;
}

export interface Routing {
  address: string;
  steps: number[];
  share: number[][];
  tokens: [string, number, number][][];
}

/** One sentence, a run of each checkpoint. */
export interface Probed {
  name: string;
  text: string;
  steps: { step: number; model: string; run: string }[];
}
