// What to take away of a matrix: a picture, a drawing, a table of all its digits.
import { useState } from "preact/hooks";
import { diverging, sequential } from "./palette";
import { type Grid, takeOut } from "./takeout";

export function TakeAway({ grid, scale = "sequential" }: { grid: () => Grid | Promise<Grid>; scale?: "sequential" | "diverging" }) {
  const [failed, setFailed] = useState("");
  const take = async (as: "png" | "svg" | "csv") => {
    try {
      setFailed("");
      await takeOut(await grid(), (scale === "sequential" ? sequential : diverging).value, as);
    } catch (error) {
      setFailed((error as Error).message);
    }
  };
  return (
    <span class="takeout" role="group" aria-label="take this matrix away">
      {(["png", "svg", "csv"] as const).map((as) => (
        <button key={as} class="quiet" title={`save as ${as.toUpperCase()}`} onClick={() => void take(as)}>{as.toUpperCase()}</button>
      ))}
      {failed && <span role="alert">{failed}</span>}
    </span>
  );
}
