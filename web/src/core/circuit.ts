// A circuit as a picture: positions from left to right, layers from the bottom up. Every node and edge of the JSON has a place.
import type { Circuit, CircuitEdge, CircuitNode } from "./types";

export const BOX = { width: 42, height: 22 };
const GAP = 5, BETWEEN = 46, LEFT = 84, LETTER = 7, TOP = 12, WIDEST = 14; // pixels; of the widest edge
const ALL = 40; // tokens up to which those without a node have a column too
export const WORD = 9; // letters of a column's word
const LINE = 4; // nodes beside each other, then the next line

export interface Placed {
  node: CircuitNode;
  label: string;
  x: number; // of its middle
  y: number;
}

export interface Drawn {
  edge: CircuitEdge;
  path: string;
  width: number;
}

export interface Picture {
  width: number;
  height: number;
  nodes: Placed[];
  edges: Drawn[];
  /** From a head to where it looks. */
  ties: { key: string; path: string }[];
  columns: { x: number; word: string; title: string }[];
  rows: { y: number; name: string }[];
}

/** The share of the answer that a number adds or takes. */
export const share = (circuit: Circuit, value: number): number => value / Math.abs(circuit.nodes[0].value);

/** An answer on the way from that of no node, 0, to the model's own, 1. */
export function kept({ faithfulness: run }: Circuit, answer: number): number {
  return (answer - run.nothing) / (run.model - run.nothing);
}

const isSource = (circuit: Circuit, address: string) => circuit.source_words.length > 0 && /^(encoder\.|source_)/.test(address);
const KINDS = ["head", "cross head"]; // then all others of a block

/** A number that grows upwards, and the row's name. */
function rowOf(circuit: Circuit, node: CircuitNode): [number, string] {
  if (node.kind === "answer") return [1e9, "answer"];
  if (node.block === null) return [-1, "tokens"];
  const pair = circuit.source_words.length > 0, below = pair && isSource(circuit, node.address);
  const kind = node.head ? circuit.nodes.find((one) => one.address === node.head)!.kind : node.kind, at = KINDS.indexOf(kind);
  const name = at === 0 ? "heads" : at === 1 ? "cross heads" : kind === "bias" ? "biases" : kind.endsWith("head") ? `${kind}s` : "MLPs";
  return [(below ? 0 : 1e6) + node.block * 10 + (at < 0 ? 5 : at), `${pair ? (below ? "E" : "D") : "L"}${node.block} ${name}`];
}

function labelOf(node: CircuitNode): string {
  if (node.kind === "scores") return `→ ${/looks at \d+:(.*?), \d/.exec(node.text)?.[1] ?? ""}`.slice(0, 7);
  const nth = /(\d+) at /.exec(node.text)?.[1];
  if (/head/.test(node.kind) && nth) return `${node.kind === "head" ? "h" : "c"}${nth}`;
  if (nth && node.kind !== "mlp") return `${node.kind[0]}${nth}`;
  return node.kind === "mlp" ? "MLP" : node.kind.slice(0, 7);
}

export function picture(circuit: Circuit): Picture {
  const { source_words: source, words } = circuit;
  const columnOf = (node: CircuitNode) => (node.position === null ? -1 : node.position + (isSource(circuit, node.address) ? 0 : source.length));
  const used = new Set(circuit.nodes.map(columnOf)), every = source.length + words.length;
  const shown = [...(used.has(-1) ? [-1] : []), ...Array.from({ length: every }, (_, at) => at).filter((at) => every <= ALL || used.has(at))];
  const cells = new Map<string, CircuitNode[]>(), levels = new Map<number, string>();
  for (const node of circuit.nodes) {
    if (node.head) continue;
    const [level, name] = rowOf(circuit, node), key = `${level},${columnOf(node)}`;
    levels.set(level, name);
    const looks = circuit.nodes.filter((one) => one.head === node.address); // a head and where it looks stand together
    cells.set(key, [...(cells.get(key) ?? []), node, ...looks]);
  }
  const order = [...levels.keys()].sort((a, b) => b - a);
  const most = (column: number) => Math.max(0, ...order.map((level) => Math.min(LINE, cells.get(`${level},${column}`)?.length ?? 0)));
  const tall = (level: number) => Math.max(1, ...shown.map((column) => Math.ceil((cells.get(`${level},${column}`)?.length ?? 0) / LINE)));
  const columns: Picture["columns"] = [], rows: Picture["rows"] = [], nodes: Placed[] = [];
  let x = LEFT;
  const middles = new Map<number, number>();
  for (const column of shown) {
    const ofSource = column < source.length;
    const at = ofSource ? column : column - source.length, word = column < 0 ? "all" : (ofSource ? source : words)[at];
    const wide = Math.max(LETTER * (Math.min(WORD, word.length) + 1), most(column) * (BOX.width + GAP) + GAP);
    middles.set(column, x + wide / 2);
    columns.push({ x: x + wide / 2, word, title: column < 0 ? "of all tokens" : `${source.length ? (ofSource ? "source " : "target ") : ""}${at}:${word}` });
    x += wide;
  }
  let y = TOP;
  for (const level of order) {
    const lines = tall(level), high = lines * (BOX.height + GAP);
    rows.push({ y: y + high / 2, name: levels.get(level)! });
    for (const column of shown) {
      const cell = cells.get(`${level},${column}`) ?? [];
      cell.forEach((node, nth) => {
        const line = Math.floor(nth / LINE), inLine = Math.min(LINE, cell.length - line * LINE);
        nodes.push({ node, label: labelOf(node), x: middles.get(column)! + ((nth % LINE) - (inLine - 1) / 2) * (BOX.width + GAP), y: y + (line + 0.5) * (BOX.height + GAP) });
      });
    }
    y += high + BETWEEN;
  }
  const places = new Map(nodes.map((one) => [one.node.address, one]));
  const edges = circuit.edges.map((edge): Drawn => {
    const from = places.get(edge.writer)!, to = places.get(edge.reader)!, bend = Math.max(18, (from.y - to.y) / 2);
    const [low, high] = [from.y - BOX.height / 2, to.y + BOX.height / 2];
    return { edge, path: `M${from.x} ${low}C${from.x} ${low - bend} ${to.x} ${high + bend} ${to.x} ${high}`, width: Math.max(0.6, WIDEST * Math.min(1, Math.abs(share(circuit, edge.value)))) };
  });
  const ties = nodes.flatMap(({ node, x: right, y: level }) => {
    const head = node.head && places.get(node.head);
    return head ? [{ key: node.address, path: `M${head.x + BOX.width / 2} ${head.y}L${right - BOX.width / 2} ${level}` }] : [];
  });
  return { width: x + GAP, height: y - BETWEEN + 26, nodes, edges, ties, columns, rows };
}
