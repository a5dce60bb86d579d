import type { ComponentType } from "preact";
import type { ModelCard, Run } from "../core/types";

export interface Screen {
  name: string; // in the URL
  title: string; // on the tab
  order: number; // its key, 0 to 9
  component: ComponentType;
  /** A sentence why this model has no such screen; null where it has. Asked of kinds and abilities, never of a model's name. */
  absent?: (card: ModelCard, run: Run | null) => string | null;
  /** Works without a run (and so without the text box). */
  alone?: boolean;
}
