// The depth that a reader chose, on every page and for every idea on it; without scripts all five are shown.
document.documentElement.classList.add("js");
addEventListener("DOMContentLoaded", () => {
  const held = (() => { try { return localStorage.getItem("depth"); } catch { return null; } })();
  const groups = [...document.querySelectorAll(".told")];
  const choose = (depth) => {
    for (const one of groups) {
      for (const part of one.querySelectorAll(":scope > .depth")) part.classList.toggle("chosen", part.classList.contains(depth));
      for (const input of one.querySelectorAll(":scope > fieldset input")) input.checked = input.value === depth;
    }
  };
  choose(held ?? "plain");
  addEventListener("change", (event) => {
    const input = event.target.closest?.("fieldset.depths input");
    if (!input) return;
    const before = input.getBoundingClientRect().top; // what is read stays where it is
    choose(input.value);
    scrollBy(0, input.getBoundingClientRect().top - before);
    try { localStorage.setItem("depth", input.value); } catch { /* a page opened from disk may have no storage */ }
  });
});
// A sandbox tells how high it is and is told whether the page is light or dark; from disk a frame is reached in no other way.
addEventListener("message", ({ data, source }) => {
  const frame = [...document.querySelectorAll("iframe.sandbox")].find((one) => one.contentWindow === source);
  if (!frame || !(data?.height > 0)) return;
  frame.style.height = `${Math.ceil(data.height) + 2}px`;
  tell(frame);
});
const tell = (frame) => frame.contentWindow?.postMessage({ theme: { light: "light", dark: "dark" }[document.body.dataset.theme] ?? "system" }, "*");
addEventListener("DOMContentLoaded", () => new MutationObserver(() => document.querySelectorAll("iframe.sandbox").forEach(tell))
  .observe(document.body, { attributes: true, attributeFilter: ["data-theme"] }));
