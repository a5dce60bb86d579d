// The depth that a reader chose, on every page and for every idea on it (page.html sets it before anything is painted).
addEventListener("DOMContentLoaded", () => {
  const root = document.documentElement;
  const choose = (depth) => {
    root.dataset.depth = depth;
    for (const input of document.querySelectorAll("fieldset.depths input")) input.checked = input.value === depth;
  };
  choose(root.dataset.depth ?? "plain");
  addEventListener("change", (event) => {
    const input = event.target.closest?.("fieldset.depths input");
    if (!input) return;
    const before = input.getBoundingClientRect().top; // what is read stays where it is
    choose(input.value);
    scrollBy(0, input.getBoundingClientRect().top - before);
    try { localStorage.setItem("depth", input.value); } catch { /* a page opened from disk may have no storage */ }
  });
});
// A sandbox tells how high it is; frames are told whether the page is light or dark; from disk they are reached in no other way.
addEventListener("message", ({ data, source }) => {
  const frame = [...document.querySelectorAll("iframe.sandbox")].find((one) => one.contentWindow === source);
  if (!frame || !(data?.height > 0)) return;
  frame.style.height = `${Math.ceil(data.height) + 2}px`;
  tell(frame);
});
const tell = (frame) => frame.contentWindow?.postMessage({ theme: { light: "light", dark: "dark" }[document.body.dataset.theme] ?? "system" }, "*");
addEventListener("load", ({ target }) => target.matches?.("figure.live iframe") && tell(target), true); // each when it is there
addEventListener("DOMContentLoaded", () => new MutationObserver(() => document.querySelectorAll("figure.live iframe").forEach(tell))
  .observe(document.body, { attributes: true, attributeFilter: ["data-theme"] }));
