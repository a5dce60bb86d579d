// The one way to show a number in words: it has an address, and a test reads both.
import { named } from "../core/address";
import { number, percent, signed } from "../core/format";

interface Props {
  addr: string;
  v: number | null;
  digits?: number;
  as?: "number" | "signed" | "percent";
  open?: (address: string) => void; // a click goes to the arithmetic behind it
}

export function Num({ addr, v, digits = 5, as = "number", open }: Props) {
  const shown = as === "percent" && v !== null ? percent(v) : as === "signed" ? signed(v, digits) : number(v, digits);
  const told = { "data-addr": addr, "data-v": v === null ? "" : String(v), title: `${named(addr)} = ${v}` };
  if (open)
    return (
      <button class="num link" {...told} onClick={() => open(addr)}>
        {shown}
      </button>
    );
  return (
    <span class="num" {...told}>
      {shown}
    </span>
  );
}
