// One line a screen; its own file says its place, its title and which models have it.
export { playground } from "./playground"; // 1
export { inside } from "./inside"; // 2
export { attention } from "./attention"; // 3
export { lens } from "./lens"; // 4
export { tokens } from "./tokens"; // 5
export { experts } from "./experts"; // 6
export { train } from "./train"; // 7
export { compare } from "./compare"; // 8
