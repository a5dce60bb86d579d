import { type VNode, h } from "preact";
import type { Maths } from "./mathml";

const node = (maths: Maths | string): VNode | string => (typeof maths === "string" ? maths : h(maths.tag, null, ...maths.children.map(node)));

/** An equation, drawn by the browser itself. */
export function Formula({ of }: { of: Maths }): VNode {
  return h("math", { display: "block" }, node(of));
}
