// The sandbox alone, for a frame on the site: sandbox.html#rope shows one card, #sampling?v=... with its first numbers.
import { render } from "preact";
import "./style.css";
import { param, view } from "./core/state";
import { install } from "./kernel/probe";
import { CARDS } from "./views/sandbox";

install();
const start = param("v", "", (one) => one), [title, Card] = CARDS[view.value] ?? CARDS.softmax;
const root = document.getElementById("app")!;
// The page around is told how high the card is; a page opened from disk can reach its frames in no other way.
render(<main class="sandbox stack" aria-label={title}><Card start={start.value || undefined} /></main>, root);
new ResizeObserver(() => parent.postMessage({ height: root.firstElementChild!.scrollHeight }, "*")).observe(root.firstElementChild!);
