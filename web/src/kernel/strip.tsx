// The tokens of the text: hover lights their rows and columns everywhere, a click locks, shift-click adds, a double click asks "what if".
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { label, type Piece } from "../core/pieces";
import * as state from "../core/state";

interface Props {
  pieces: readonly Piece[];
  name?: string;
  /** The locked one. */
  locked?: number | null;
  also?: readonly number[];
  onLock?: (at: number, add: boolean) => void;
  onTwice?: (at: number) => void;
  /** 0 to 1, behind a token. */
  shade?: (at: number) => string | undefined;
  hover?: typeof state.hover.query;
}

const MOST = 600; // a token is a node; beyond this the rest is counted, not drawn

export function Strip({ pieces, name = "tokens", locked, also = [], onLock, onTwice, shade, hover = state.hover.query }: Props) {
  const from = useSignal(0);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (locked != null && (locked < from.value || locked >= from.value + MOST)) from.value = Math.max(0, locked - MOST / 2);
  }, [locked]);
  useEffect(() => hover.subscribe((at) => {
    box.current?.querySelector(".lit")?.classList.remove("lit");
    if (at !== null) box.current?.querySelector(`[data-at="${at}"]`)?.classList.add("lit");
  }), [hover]);
  const shown = pieces.slice(from.value, from.value + MOST);
  function keys(event: KeyboardEvent) {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const now = Number((event.target as HTMLElement).dataset.at), next = now + (event.key === "ArrowLeft" ? -1 : 1);
    (box.current?.querySelector(`[data-at="${next}"]`) as HTMLElement | null)?.focus();
    event.preventDefault();
    event.stopPropagation();
  }
  return (
    <div class="strip" role="group" aria-label={name} ref={box} onKeyDown={keys} onPointerLeave={() => (hover.value = null)}>
      {from.value > 0 && <button class="quiet" onClick={() => (from.value = Math.max(0, from.value - MOST))}>… {from.value} before</button>}
      {shown.map((one) => {
        const on = locked === one.at;
        return (
          <button
            key={one.at} data-at={one.at} data-id={one.token.id} tabIndex={one.at === (locked ?? from.value) ? 0 : -1}
            class={`token ${on ? "on" : ""} ${also.includes(one.at) ? "also" : ""} ${one.token.special ? "special" : ""} ${one.token.unk ? "unk" : ""} ${one.of > 1 ? `part ${one.part === 0 ? "first" : one.part === one.of - 1 ? "last" : ""}` : ""}`}
            style={shade?.(one.at) ? { background: shade(one.at) } : undefined}
            aria-pressed={on} title={`token ${one.at}, id ${one.token.id}${one.token.special ? ", special" : ""}${one.token.unk ? ", unknown" : ""}`}
            onPointerEnter={() => (hover.value = one.at)} onFocus={() => (hover.value = one.at)}
            onClick={(event) => onLock?.(one.at, event.shiftKey)} onDblClick={() => onTwice?.(one.at)}
          >
            {one.of > 1 && one.part > 0 ? "﹋" : label({ ...one, of: 1 })}
          </button>
        );
      })}
      {from.value + MOST < pieces.length && <button class="quiet" onClick={() => (from.value += MOST)}>{pieces.length - from.value - MOST} more …</button>}
    </div>
  );
}
