// Curves over steps on a canvas: the range of each bucket as a ghost, its smoothed mean as a line; one cursor for all charts.
import { effect, type Signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { count, number } from "../core/format";
import { dark } from "../core/state";
import { firstAtLeast, smooth, ticks } from "./curves";
import { CATEGORIES, CATEGORIES_DARK } from "./palettes";
import { counters, probed } from "./probe";

export interface Line {
  name: string;
  steps: readonly number[];
  min: readonly (number | null)[];
  max: readonly (number | null)[];
  mean: readonly (number | null)[];
  /** Single measurements: drawn as dots, never smoothed. */
  dots?: boolean;
}

export interface ChartProps {
  title: string;
  address: string;
  lines: readonly Line[];
  cursor: Signal<number | null>;
  /** The last step of the plan, for the axis. */
  until?: number;
  height?: number;
  keep?: number;
  logarithmic?: boolean;
  /** A level to compare with, and what it is. */
  level?: [number, string];
  onPick?: (step: number) => void;
}

export function Chart({ title, address, lines, cursor, until, height = 230, keep = 0, logarithmic, level, onPick }: ChartProps) {
  const frame = useRef<HTMLDivElement>(null), base = useRef<HTMLCanvasElement>(null), over = useRef<HTMLCanvasElement>(null), said = useRef<HTMLSpanElement>(null);
  const [width, setWidth] = useState(0);
  const left = 52, right = 12, top = 8, bottom = 22;
  useEffect(() => {
    const observer = new ResizeObserver(([one]) => setWidth(Math.floor(one.contentRect.width)));
    observer.observe(frame.current!);
    return () => observer.disconnect();
  }, []);
  const known = lines.filter((one) => one.steps.length);
  const high_x = Math.max(1, until ?? 0, ...known.map((one) => one.steps[one.steps.length - 1])), low_x = 0;
  let low = Infinity, high = -Infinity;
  for (const one of known) for (let i = 0; i < one.steps.length; i++) {
    const a = one.min[i], b = one.max[i];
    if (a !== null && (!logarithmic || a > 0)) low = Math.min(low, a);
    if (b !== null) high = Math.max(high, b);
  }
  if (level && high > 0) high = Math.max(high, Math.min(level[0], high * 1.5));
  if (!(high > low)) [low, high] = low < Infinity ? [low - Math.abs(low) * 0.1 - 1e-12, low + Math.abs(low) * 0.1 + 1e-12] : [0, 1];
  const pad = (high - low) * 0.04, bend = (v: number) => (logarithmic ? Math.log10(Math.max(v, low)) : v);
  const [bl, bh] = logarithmic ? [bend(low), bend(high)] : [low >= 0 && low < high / 3 ? 0 : low - pad, high + pad];
  const x = (step: number) => left + ((step - low_x) / (high_x - low_x)) * (width - left - right);
  const y = (v: number) => top + (1 - (bend(v) - bl) / (bh - bl)) * (height - top - bottom);

  function draw() {
    const canvas = base.current;
    if (!canvas || !width) return;
    counters.repaints += 1;
    const ratio = devicePixelRatio || 1, style = getComputedStyle(canvas);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    g.font = "11px system-ui, sans-serif";
    g.strokeStyle = style.getPropertyValue("--line");
    g.fillStyle = style.getPropertyValue("--soft");
    g.textBaseline = "middle";
    g.textAlign = "right";
    const marks = logarithmic ? ticks(bl, bh, 4).map((one) => 10 ** one) : ticks(bl, bh, 4);
    for (const v of marks) {
      g.fillText(number(v, 3), left - 6, y(v));
      g.beginPath();
      g.moveTo(left, y(v));
      g.lineTo(width - right, y(v));
      g.stroke();
    }
    g.textAlign = "center";
    for (const step of ticks(low_x, high_x, Math.max(2, Math.floor(width / 110)))) g.fillText(count(step), x(step), height - bottom / 2);
    if (level && bend(level[0]) <= bh) {
      g.setLineDash([3, 3]);
      g.strokeStyle = style.getPropertyValue("--soft");
      g.beginPath();
      g.moveTo(left, y(level[0]));
      g.lineTo(width - right, y(level[0]));
      g.stroke();
      g.setLineDash([]);
      g.textAlign = "right";
      g.fillText(level[1], width - right, y(level[0]) - 8);
    }
    known.forEach((one, nth) => {
      const colour = (dark.value ? CATEGORIES_DARK : CATEGORIES)[nth % CATEGORIES.length];
      g.strokeStyle = g.fillStyle = colour;
      if (one.dots) {
        one.steps.forEach((step, i) => {
          const v = one.mean[i];
          if (v === null) return;
          g.beginPath();
          g.arc(x(step), y(v), 3.2, 0, 7);
          g.fill();
        });
        g.lineWidth = 1.2;
        path(g, one.steps, one.mean);
        return;
      }
      g.globalAlpha = 0.28;
      g.lineWidth = 1;
      one.steps.forEach((step, i) => {
        const [a, b] = [one.min[i], one.max[i]];
        if (a === null || b === null) return;
        g.beginPath();
        g.moveTo(x(step), y(a) + 0.5);
        g.lineTo(x(step), y(b) - 0.5);
        g.stroke();
      });
      if (keep > 0) path(g, one.steps, one.mean);
      g.globalAlpha = 1;
      g.lineWidth = 2;
      path(g, one.steps, keep > 0 ? smooth(one.mean.map((v) => v ?? NaN), keep) : one.mean);
    });
    mark();
  }

  function path(g: CanvasRenderingContext2D, steps: readonly number[], values: readonly (number | null)[]) {
    g.beginPath();
    let down = false;
    steps.forEach((step, i) => {
      const v = values[i];
      if (v === null || !Number.isFinite(v)) return;
      if (down) g.lineTo(x(step), y(v));
      else g.moveTo(x(step), y(v));
      down = true;
    });
    g.stroke();
  }

  /** The point of each line nearest to a step. */
  function nearest(step: number): { line: Line; at: number }[] {
    return known.map((line) => {
      const at = Math.min(line.steps.length - 1, firstAtLeast(line.steps, step));
      return { line, at: at > 0 && step - line.steps[at - 1] < line.steps[at] - step ? at - 1 : at };
    });
  }

  function mark() {
    const canvas = over.current;
    if (!canvas || !width) return;
    counters.overlays += 1;
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const step = cursor.value;
    if (said.current) said.current.textContent = step === null ? "" : nearest(step).map(({ line, at }) => `${line.name} ${number(line.mean[at], 4)} at ${line.steps[at]}`).join(" · ");
    if (step === null) return;
    const g = canvas.getContext("2d")!;
    g.scale(ratio, ratio);
    g.strokeStyle = getComputedStyle(canvas).getPropertyValue("--accent");
    g.beginPath();
    g.moveTo(x(step), top);
    g.lineTo(x(step), height - bottom);
    g.stroke();
  }

  useEffect(() => effect(() => {
    dark.value;
    draw();
  }), [lines, width, keep, high_x, logarithmic, low, high]);
  useEffect(() => effect(() => {
    cursor.value;
    mark();
  }), [lines, width]);
  useEffect(() => {
    const probe = (px: number) => {
      if (px < left || px > width - right || !known.length) return null;
      const { line, at } = nearest(low_x + ((px - left) / (width - left - right)) * (high_x - low_x))[0];
      return { addr: `${address}.${line.name}.mean[${line.steps[at]}]`, value: line.mean[at] ?? NaN };
    };
    probed(base.current!, probe);
    probed(over.current!, probe);
  });
  const stepAt = (event: PointerEvent | MouseEvent) => {
    const box = base.current!.getBoundingClientRect();
    return Math.max(low_x, Math.min(high_x, Math.round(low_x + ((event.clientX - box.left - left) / (width - left - right)) * (high_x - low_x))));
  };
  const move = (by: number) => (cursor.value = Math.max(low_x, Math.min(high_x, (cursor.value ?? high_x) + by)));
  return (
    <div class="curves" ref={frame}>
      <div class="row">
        <h3>{title}</h3>
        {lines.length > 1 && lines.map((one, nth) => <span key={one.name} class="soft"><i class="key" style={{ background: (dark.value ? CATEGORIES_DARK : CATEGORIES)[nth], borderRadius: one.dots ? "50%" : "0" }} /> {one.name}</span>)}
        <span class="said" ref={said} />
      </div>
      <div
        class="sheet" role="slider" tabIndex={0} aria-label={`${title}; arrows move the cursor`} aria-valuemin={low_x} aria-valuemax={high_x} aria-valuenow={cursor.value ?? high_x}
        style={{ width: `${width}px`, height: `${height}px` }}
        onPointerMove={(event) => (cursor.value = stepAt(event))} onPointerLeave={() => (cursor.value = null)} onClick={(event) => onPick?.(stepAt(event))}
        onKeyDown={(event) => {
          const step = Math.max(1, Math.round((high_x - low_x) / 100));
          if (event.key === "ArrowLeft") move(-step);
          else if (event.key === "ArrowRight") move(step);
          else if (event.key === "Enter" && cursor.value !== null) onPick?.(cursor.value);
          else return;
          event.preventDefault();
          event.stopPropagation();
        }}
      >
        <canvas ref={base} aria-hidden="true" style={{ width: `${width}px`, height: `${height}px` }} />
        <canvas ref={over} class="over" aria-hidden="true" style={{ width: `${width}px`, height: `${height}px` }} />
      </div>
    </div>
  );
}
