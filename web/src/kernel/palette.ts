// The tables of colours for the theme that is shown now, and inks on them.
import { computed } from "@preact/signals";
import { dark } from "../core/state";
import { css as cssOf, inkOn, lut } from "./palettes";

export const sequential = computed(() => lut("sequential", dark.value));
export const diverging = computed(() => lut("diverging", dark.value));

const at = (table: Uint32Array, share: number) => table[Math.max(0, Math.min(255, Math.round(share * 255)))];

/** The colour at a share of a table, 0 to 1. */
export function css(table: Uint32Array, share: number): string {
  return cssOf(at(table, share));
}

/** Dark or light text on it. */
export function ink(table: Uint32Array, share: number): string {
  return inkOn(at(table, share));
}
