// A matrix on a canvas: one pixel a cell through a table of colours, scaled; crosshair on a second canvas above it.
// Hover costs one repaint of the overlay, no request and no component. A cell too small for a pixel never hides a larger one.
import { batch, effect, untracked, type Signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { fitted, number } from "../core/format";
import { dark } from "../core/state";
import { bitmap } from "./bitmap";
import { css, diverging, ink, sequential } from "./palette";
import { counters, probed } from "./probe";
import { takeOut } from "./takeout";

export interface MatrixProps {
  data: Float32Array | Uint8Array;
  rows: number;
  cols: number;
  /** The address of a cell. */
  addr: (row: number, col: number) => string;
  /** What a stored entry means, for quantized data; f32 is itself. */
  value?: (stored: number) => number;
  scale: "sequential" | "diverging";
  /** Fixed ends of the colours, the same for every head; else the data's own. */
  range?: [number, number];
  label: string;
  /** The address of the whole, for a file's name. */
  title?: string;
  rowLabels?: readonly string[];
  colLabels?: readonly string[];
  rowName?: string;
  colName?: string;
  /** Linked crosshair: the row and column under the pointer, here or in another matrix. */
  hoverRow?: Signal<number | null>;
  hoverCol?: Signal<number | null>;
  /** The locked cell. */
  row?: number | null;
  col?: number | null;
  onLock?: (row: number, col: number) => void;
  onOpen?: (row: number, col: number) => void;
  /** The true size, where the data was pooled. */
  pooledFrom?: [number, number];
  /** Words for a cell, read aloud and shown under the pointer. */
  say?: (row: number, col: number, value: number) => string;
  /** Exactly 0 is hatched too: shares that a mask has made nothing. */
  hollow?: boolean;
  height?: number;
  compact?: boolean; // no labels, no caption: a thumbnail
}

interface View {
  zoom: number;
  x: number; // first column shown, in cells
  y: number;
}

/** Least and greatest finite number. */
export function extent(data: ArrayLike<number>, value: (v: number) => number = (v) => v): [number, number] {
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < data.length; i++) {
    const v = value(data[i]);
    if (v < low && v > -Infinity) low = v;
    if (v > high && v < Infinity) high = v;
  }
  return low > high ? [0, 0] : [low, high];
}

/** The ends of the colours: from 0 for shares, the same on both sides of 0 for signed numbers. */
export function ends(scale: "sequential" | "diverging", [low, high]: [number, number]): [number, number] {
  if (scale === "sequential") return [Math.min(0, low), high > 0 ? high : 1];
  const most = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return [-most, most];
}

const CLEAR = 0; // no alpha: what is -inf lets the hatching behind it through

/** Colour words of a matrix; where `width` x `height` is smaller than it, each pixel shows the entry farthest from 0 under it. */
export function paint(
  data: ArrayLike<number>, rows: number, cols: number, width: number, height: number,
  table: Uint32Array, low: number, high: number, value: (v: number) => number = (v) => v,
): Uint32Array {
  const out = new Uint32Array(width * height), factor = high > low ? 255 / (high - low) : 0;
  const shade = (v: number) => (v === -Infinity ? CLEAR : Number.isNaN(v) ? 0xffff00ff : table[Math.max(0, Math.min(255, Math.round((v - low) * factor)))]);
  if (width === cols && height === rows) {
    for (let i = 0; i < out.length; i++) out[i] = shade(value(data[i]));
    return out;
  }
  for (let y = 0; y < height; y++) {
    const r0 = Math.floor((y * rows) / height), r1 = Math.max(r0 + 1, Math.floor(((y + 1) * rows) / height));
    for (let x = 0; x < width; x++) {
      const c0 = Math.floor((x * cols) / width), c1 = Math.max(c0 + 1, Math.floor(((x + 1) * cols) / width));
      let best = -Infinity;
      for (let r = r0; r < r1; r++)
        for (let c = c0; c < c1; c++) {
          const v = value(data[r * cols + c]);
          if (Number.isNaN(v)) best = NaN;
          else if (best === -Infinity || Math.abs(v) > Math.abs(best)) best = v > -Infinity ? v : best;
        }
      out[y * width + x] = shade(best);
    }
  }
  return out;
}

const LABELS = "11px system-ui, sans-serif";
let ids = 0;

export function Matrix(props: MatrixProps) {
  const frame = useRef<HTMLDivElement>(null), base = useRef<HTMLCanvasElement>(null), over = useRef<HTMLCanvasElement>(null);
  const said = useRef<HTMLSpanElement>(null), grid = useRef<HTMLDivElement>(null);
  const id = useMemo(() => `matrix-${++ids}`, []);
  const view = useRef<View>({ zoom: 1, x: 0, y: 0 });
  const at = useRef<[number, number]>([props.row ?? 0, props.col ?? 0]);
  const pointer = useRef<[number, number] | null>(null);
  const [width, setWidth] = useState(0);
  const [asTable, setTable] = useState(false);
  const now = useRef(props);
  now.current = props;
  const { rows, cols, compact } = props;
  const value = props.value ?? ((v: number) => v);
  const [low, high] = useMemo(() => ends(props.scale, props.range ?? extent(props.data, value)), [props.data, props.scale, props.range?.[0], props.range?.[1]]);

  // Where things are drawn: margins for labels, the size of a cell.
  const longest = (labels?: readonly string[]) => Math.min(12, Math.max(0, ...(labels ?? []).map((one) => one.length)));
  const left = compact || !props.rowLabels ? 0 : 10 + 7 * longest(props.rowLabels);
  const inner = Math.max(1, width - left);
  const square = props.rowLabels !== undefined && props.colLabels !== undefined;
  const most = props.height ?? 420;
  const sides = (room: number) => {
    const sx = square ? Math.min(room / cols, 44) : room / cols;
    const sy = square ? Math.min(sx, Math.max(most / rows, 1)) : Math.max(Math.min(16, most / rows), most / rows > 1 ? 2 : most / rows);
    return [square ? Math.min(sx, sy * 2.4) : sx, sy];
  };
  const wordsWide = useMemo(() => (square && !compact ? props.colLabels!.map((one) => lengthOf(clip(one))) : []), [props.colLabels, square, compact]);
  const upright = sides(inner)[0], turned = square && (upright < 34 || wordsWide.some((one, at) => at > 0 && (one + wordsWide[at - 1]) / 2 + 4 > upright));
  const right = turned ? Math.ceil((wordsWide.at(-1) ?? 0) / 2) : 0; // a turned word leans out over the last column
  const [sx1, sy0] = sides(Math.max(1, inner - right));
  const top = compact || !props.colLabels || sx1 < 11 ? 0 : turned ? 12 + 5.5 * longest(props.colLabels) : 18;
  const wide = Math.min(inner - right, sx1 * cols), tall = sy0 * rows;

  useEffect(() => {
    const observer = new ResizeObserver(([one]) => setWidth(Math.floor(one.contentRect.width)));
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);

  function cellAt(x: number, y: number): [number, number] | null {
    const { zoom, x: vx, y: vy } = view.current;
    if (x < left || y < top || x >= left + wide || y >= top + tall) return null;
    const col = Math.floor(vx + (x - left) / (sx1 * zoom)), row = Math.floor(vy + (y - top) / (sy0 * zoom));
    return row >= 0 && row < rows && col >= 0 && col < cols ? [row, col] : null;
  }

  function draw() {
    const canvas = base.current;
    if (!canvas || width <= 0) return;
    counters.repaints += 1;
    const ratio = devicePixelRatio || 1, { zoom, x: vx, y: vy } = view.current;
    canvas.width = Math.round((left + wide + right) * ratio);
    canvas.height = Math.round((top + tall) * ratio);
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    const style = getComputedStyle(canvas), text = style.getPropertyValue("--soft").trim() || "#666";
    hatch(g, left, top, wide, tall, style.getPropertyValue("--line").trim());
    const table = props.scale === "sequential" ? sequential.value : diverging.value;
    // As many pixels as are seen, at most one a cell.
    const pw = Math.max(1, Math.min(cols, Math.round(wide * ratio * zoom))), ph = Math.max(1, Math.min(rows, Math.round(tall * ratio * zoom)));
    const seen = props.hollow ? (v: number) => value(v) || -Infinity : value;
    const image = bitmap(props.data, pw, ph, table, `${low} ${high} ${!!props.hollow} ${props.value ? "coded" : ""}`, () => paint(props.data, rows, cols, pw, ph, table, low, high, seen));
    g.imageSmoothingEnabled = false;
    g.save();
    g.beginPath();
    g.rect(left, top, wide, tall);
    g.clip();
    g.drawImage(image, left - vx * sx1 * zoom, top - vy * sy0 * zoom, wide * zoom, tall * zoom);
    const cw = sx1 * zoom, ch = sy0 * zoom;
    if (cw >= 34 && ch >= 14 && !compact) {
      g.font = "10px ui-monospace, monospace";
      g.textAlign = "center";
      g.textBaseline = "middle";
      for (let r = Math.floor(vy); r < Math.min(rows, vy + tall / ch + 1); r++)
        for (let c = Math.floor(vx); c < Math.min(cols, vx + wide / cw + 1); c++) {
          const v = value(props.data[r * cols + c]);
          if (props.hollow && v === 0) continue;
          g.fillStyle = v === -Infinity ? text : ink(table, (v - low) / (high - low));
          g.fillText(fitted(v, Math.floor((cw - 5) / 6)), left + (c + 0.5 - vx) * cw, top + (r + 0.5 - vy) * ch);
        }
    }
    g.restore();
    g.fillStyle = text;
    g.font = LABELS;
    if (left && ch >= 10) {
      g.textAlign = "right";
      g.textBaseline = "middle";
      for (let r = Math.floor(vy); r < rows && (r - vy) * ch < tall; r++) g.fillText(clip(props.rowLabels![r]), left - 5, top + (r + 0.5 - vy) * ch);
    }
    if (top && cw >= 11) {
      g.textBaseline = "middle";
      for (let c = Math.floor(vx); c < cols && (c - vx) * cw < wide; c++) {
        const x = left + (c + 0.5 - vx) * cw;
        if (x < left) continue;
        g.save();
        g.translate(x, top - 5);
        if (turned) g.rotate(-Math.PI / 3);
        g.textAlign = turned ? "left" : "center";
        g.fillText(clip(props.colLabels![c]), 0, turned ? 0 : -4);
        g.restore();
      }
    }
    overlay();
  }

  function overlay() {
    const canvas = over.current, p = now.current;
    if (!canvas || width <= 0) return;
    counters.overlays += 1;
    const ratio = devicePixelRatio || 1, { zoom, x: vx, y: vy } = view.current, cw = sx1 * zoom, ch = sy0 * zoom;
    const w = Math.round((left + wide + right) * ratio), h = Math.round((top + tall) * ratio);
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
    }
    const g = canvas.getContext("2d")!;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, left + wide + right, top + tall);
    const accent = getComputedStyle(canvas).getPropertyValue("--accent").trim() || "#d55e00";
    const row = pointer.current?.[0] ?? p.hoverRow?.value ?? null, col = pointer.current?.[1] ?? p.hoverCol?.value ?? null;
    g.strokeStyle = accent;
    g.save();
    g.beginPath();
    g.rect(left, top, wide, tall);
    g.clip();
    g.globalAlpha = 0.9;
    g.lineWidth = 1;
    if (row !== null && row < rows) g.strokeRect(left - 1, top + (row - vy) * ch, wide + 2, ch);
    if (col !== null && col < cols) g.strokeRect(left + (col - vx) * cw, top - 1, Math.max(cw, 1), tall + 2);
    g.globalAlpha = 1;
    g.lineWidth = 2.5;
    const locked: [number, number] | null = p.row != null && p.col != null ? [p.row, p.col] : null;
    for (const [one, focus] of [[locked, false], [document.activeElement === grid.current ? at.current : null, true]] as const) {
      if (!one) continue;
      g.setLineDash(focus ? [3, 2] : []);
      g.strokeRect(left + (one[1] - vx) * cw + 1, top + (one[0] - vy) * ch + 1, Math.max(cw - 2, 2), Math.max(ch - 2, 2));
    }
    g.restore();
  }

  useEffect(() => {
    view.current = { zoom: 1, x: 0, y: 0 };
  }, [rows, cols]);
  useEffect(draw, [width, props.data, low, high, rows, cols, props.row, props.col, left, top]);
  useEffect(() => effect(() => {
    dark.value;
    untracked(draw); // what lies under the pointer is the overlay's affair
  }), [width, props.data, low, high, rows, cols]);
  useEffect(() => effect(() => {
    props.hoverRow?.value;
    props.hoverCol?.value;
    untracked(overlay);
  }), [props.hoverRow, props.hoverCol, width, rows, cols]);
  useEffect(() => {
    const probe = (x: number, y: number) => {
      const cell = cellAt(x, y);
      return cell && { addr: now.current.addr(...cell), value: value(now.current.data[cell[0] * cols + cell[1]]) };
    };
    probed(over.current!, probe);
    probed(base.current!, probe);
  });

  function tell(cell: [number, number] | null) {
    if (!said.current) return;
    if (!cell) {
      said.current.textContent = "";
      return;
    }
    const [r, c] = cell, v = value(now.current.data[r * cols + c]);
    const where = `${props.rowLabels?.[r] ?? `${props.rowName ?? "row"} ${r}`}, ${props.colLabels?.[c] ?? `${props.colName ?? "column"} ${c}`}`;
    said.current.textContent = props.say ? props.say(r, c, v) : `${where}: ${v === -Infinity ? "hidden by the mask, −∞" : props.hollow && v === 0 ? "0, hidden by the mask" : number(v, 6)}`;
  }

  const drag = useRef<{ x: number; y: number; from: View; moved: boolean } | null>(null);

  function move(event: PointerEvent) {
    const box = base.current!.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    if (drag.current && view.current.zoom > 1) {
      const { from } = drag.current, dx = event.clientX - drag.current.x, dy = event.clientY - drag.current.y;
      if (Math.abs(dx) + Math.abs(dy) > 4) drag.current.moved = true;
      if (drag.current.moved) {
        settle({ zoom: from.zoom, x: from.x - dx / (sx1 * from.zoom), y: from.y - dy / (sy0 * from.zoom) });
        return;
      }
    }
    const cell = cellAt(x, y), before = pointer.current;
    if (cell?.[0] === before?.[0] && cell?.[1] === before?.[1]) return;
    pointer.current = cell;
    point(cell);
    tell(cell);
  }

  /** Tell every matrix of this row and column, at once: one repaint of an overlay. */
  function point(cell: [number, number] | null) {
    const { hoverRow, hoverCol } = props, said = (hoverRow && hoverRow.value !== (cell?.[0] ?? null)) || (hoverCol && hoverCol.value !== (cell?.[1] ?? null));
    batch(() => {
      if (hoverRow) hoverRow.value = cell?.[0] ?? null;
      if (hoverCol) hoverCol.value = cell?.[1] ?? null;
    });
    if (!said || !hoverRow || !hoverCol) overlay();
  }

  function settle(next: View) {
    const zoom = Math.max(1, Math.min(64, next.zoom));
    const bound = (v: number, n: number) => Math.max(0, Math.min(n - n / zoom, v));
    view.current = { zoom, x: bound(next.x, cols), y: bound(next.y, rows) };
    draw();
  }

  function zoomAt(factor: number, x: number, y: number) {
    const from = view.current, zoom = Math.max(1, Math.min(64, from.zoom * factor));
    const cx = from.x + (x - left) / (sx1 * from.zoom), cy = from.y + (y - top) / (sy0 * from.zoom);
    settle({ zoom, x: cx - (x - left) / (sx1 * zoom), y: cy - (y - top) / (sy0 * zoom) });
  }

  function keys(event: KeyboardEvent) {
    const [r, c] = at.current;
    const step = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = {
      ArrowUp: [r - step, c], ArrowDown: [r + step, c], ArrowLeft: [r, c - step], ArrowRight: [r, c + step], Home: [r, 0], End: [r, cols - 1], PageUp: [0, c], PageDown: [rows - 1, c],
    };
    if (event.key in moves) {
      const [nr, nc] = moves[event.key];
      at.current = [Math.max(0, Math.min(rows - 1, nr)), Math.max(0, Math.min(cols - 1, nc))];
      const { zoom, x, y } = view.current, [row, col] = at.current;
      if (zoom > 1) settle({ zoom, x: col < x ? col : col >= x + cols / zoom ? col - cols / zoom + 1 : x, y: row < y ? row : row >= y + rows / zoom ? row - rows / zoom + 1 : y });
      pointer.current = null;
      point(at.current);
      tell(at.current);
    } else if (event.key === "Enter") props.onOpen?.(r, c);
    else if (event.key === " ") props.onLock?.(r, c);
    else if (event.key === "+" || event.key === "=") zoomAt(1.5, left + wide / 2, top + tall / 2);
    else if (event.key === "-") zoomAt(1 / 1.5, left + wide / 2, top + tall / 2);
    else if (event.key === "0") settle({ zoom: 1, x: 0, y: 0 });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const pooled = props.pooledFrom && (props.pooledFrom[0] !== rows || props.pooledFrom[1] !== cols);
  return (
    <div class={`matrix ${compact ? "compact" : ""}`} ref={frame}>
      <div
        class="sheet" ref={grid} role="grid" tabIndex={0} aria-label={props.label} aria-rowcount={rows} aria-colcount={cols} aria-activedescendant={id}
        style={{ width: `${left + wide + right}px`, height: `${top + tall}px` }}
        onKeyDown={keys} onFocus={() => (overlay(), tell(at.current))} onBlur={overlay}
        onPointerMove={move}
        onPointerDown={(event) => (drag.current = { x: event.clientX, y: event.clientY, from: view.current, moved: false })}
        onPointerUp={(event) => {
          const moved = drag.current?.moved;
          drag.current = null;
          if (moved) return;
          const box = base.current!.getBoundingClientRect(), cell = cellAt(event.clientX - box.left, event.clientY - box.top);
          if (!cell) return;
          at.current = cell;
          props.onLock?.(...cell);
          props.onOpen?.(...cell);
        }}
        onPointerLeave={() => {
          drag.current = null;
          pointer.current = null;
          point(null);
          tell(null);
        }}
        onWheel={(event) => {
          if (!event.ctrlKey && !event.metaKey) return;
          event.preventDefault();
          const box = base.current!.getBoundingClientRect();
          zoomAt(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - box.left, event.clientY - box.top);
        }}
      >
        <canvas ref={base} aria-hidden="true" style={{ width: `${left + wide + right}px`, height: `${top + tall}px` }} />
        <canvas ref={over} class="over" aria-hidden="true" style={{ width: `${left + wide + right}px`, height: `${top + tall}px` }} />
        <div role="row" class="hidden">
          <div role="gridcell" id={id}>
            <span ref={said} />
          </div>
        </div>
      </div>
      {!compact && (
        <div class="legend">
          <Legend scale={props.scale} low={low} high={high} />
          {pooled && (
            <span class="tag" title="each pixel shows the number farthest from 0 under it">
              pooled {props.pooledFrom!.join("×")} → {rows}×{cols}
            </span>
          )}
          <Said of={said} />
          {(["png", "svg", "csv"] as const).map((as) => (
            <button key={as} class="quiet" title={`take this matrix away as ${as.toUpperCase()}`} onClick={() => void takeOut({
              address: props.title ?? props.addr(0, 0).replace(/\[.*/, ""), rows, cols, values: Float32Array.from(props.data, value),
              rowWords: props.rowLabels ?? Array.from({ length: rows }, (_, i) => String(i)), colWords: props.colLabels ?? Array.from({ length: cols }, (_, i) => String(i)), min: low, max: high,
            }, props.scale === "sequential" ? sequential.value : diverging.value, as)}>⤓ {as}</button>
          ))}
          <button class="quiet" aria-pressed={asTable} onClick={() => setTable(!asTable)}>
            {asTable ? "hide table" : "table"}
          </button>
        </div>
      )}
      {asTable && <Table {...props} at={at.current} value={value} />}
    </div>
  );
}

/** What the hidden cell says, seen too: copied as it changes, without a component's work. */
function Said({ of }: { of: { current: HTMLElement | null } }) {
  const shown = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    const observer = new MutationObserver(() => {
      if (shown.current && of.current) shown.current.textContent = of.current.textContent;
    });
    observer.observe(of.current!, { childList: true, characterData: true, subtree: true });
    return () => observer.disconnect();
  }, []);
  return <span class="said" aria-hidden="true" ref={shown} />;
}

export function Legend({ scale, low, high }: { scale: "sequential" | "diverging"; low: number; high: number }) {
  const table = scale === "sequential" ? sequential.value : diverging.value;
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => css(table, share)).join(",");
  return (
    <span class="scale">
      {number(low, 3)} <span class="bar" style={{ background: `linear-gradient(90deg,${stops})` }} /> {number(high, 3)}
    </span>
  );
}

const WINDOW = 24;

function Table(props: MatrixProps & { at: [number, number]; value: (v: number) => number }) {
  const from = (place: number, n: number) => Math.max(0, Math.min(n - WINDOW, place - WINDOW / 2));
  const r0 = from(props.at[0], props.rows), c0 = from(props.at[1], props.cols);
  const rows = Array.from({ length: Math.min(WINDOW, props.rows) }, (_, i) => r0 + i), cols = Array.from({ length: Math.min(WINDOW, props.cols) }, (_, i) => c0 + i);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`${props.label}, as a table`}>
      <table class="numbers">
        <thead>
          <tr>
            <td />
            {cols.map((c) => (
              <th scope="col" key={c}>{props.colLabels?.[c] ?? c}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr key={r}>
              <th scope="row">{props.rowLabels?.[r] ?? r}</th>
              {cols.map((c) => {
                const v = props.value(props.data[r * props.cols + c]);
                return <td key={c} data-addr={props.addr(r, c)} data-v={v}>{number(v, 4)}</td>;
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

const ruler = document.createElement("canvas").getContext("2d")!;

/** How wide a label is, in CSS pixels. */
function lengthOf(text: string): number {
  ruler.font = LABELS;
  return ruler.measureText(text).width;
}

function clip(text: string | undefined): string {
  if (!text) return "";
  return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}

function hatch(g: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, colour: string) {
  g.save();
  g.beginPath();
  g.rect(x, y, w, h);
  g.clip();
  g.strokeStyle = colour || "#999";
  g.lineWidth = 1;
  g.beginPath();
  for (let i = -h; i < w; i += 6) {
    g.moveTo(x + i, y + h);
    g.lineTo(x + i + h, y);
  }
  g.stroke();
  g.restore();
}
