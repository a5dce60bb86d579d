// Builds the page into src/glassformer/static (committed), or the tests into web/build.
//   node esbuild.mjs            app.js and its parts (a screen each), app.css, inline.js (all in one), sandbox.js (the sandbox alone), index.html
//   node esbuild.mjs --out DIR  the same, elsewhere (to compare with what is committed)
//   node esbuild.mjs --tests    tests/*.test.ts -> build/tests
import { build } from "esbuild";
import { gzipSync } from "node:zlib";
import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
process.chdir(here);
const at = process.argv.indexOf("--out");
const out = at > 0 ? process.argv[at + 1] : "../src/glassformer/static";
const common = { bundle: true, target: "es2022", jsx: "automatic", jsxImportSource: "preact", charset: "utf8", logLevel: "warning" };

// Nothing on the page is invented: no random numbers, no foreign host, no HTML made of strings.
const FORBIDDEN = [/Math\.random/, /https?:\/\/(?!www\.w3\.org\/)/, /innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML/, /\beval\(|new Function/];

function sources(folder) {
  return readdirSync(folder, { withFileTypes: true }).flatMap((one) =>
    one.isDirectory() ? sources(join(folder, one.name)) : /\.(tsx?|css)$/.test(one.name) ? [join(folder, one.name)] : []);
}

for (const file of sources("src")) {
  const text = readFileSync(file, "utf8");
  for (const pattern of FORBIDDEN)
    if (pattern.test(text)) throw new Error(`${file}: ${pattern} does not belong on the page`);
}

if (process.argv.includes("--tests")) {
  await build({ ...common, entryPoints: sources("tests"), outdir: "build/tests", format: "esm", platform: "node", outExtension: { ".js": ".js" } });
} else {
  mkdirSync(out, { recursive: true });
  for (const name of readdirSync(out)) if (/-[A-Z0-9]{8}\.js$/.test(name)) rmSync(join(out, name)); // parts of an earlier build
  const page = { ...common, minify: true, legalComments: "none", define: { "process.env.NODE_ENV": '"production"' } };
  const empty = { ".css": "empty" };
  const made = await build({ ...page, entryPoints: { app: "src/main.tsx" }, outdir: out, format: "esm", splitting: true, loader: empty, metafile: true });
  await build({ ...page, entryPoints: { inline: "src/main.tsx" }, outdir: out, format: "iife" });
  await build({ ...page, entryPoints: { widget: "src/widget.ts" }, outdir: out, format: "esm" });
  renameSync(join(out, "inline.css"), join(out, "app.css"));
  await build({ ...page, entryPoints: { sandbox: "src/sandbox.tsx" }, outdir: out, format: "iife", loader: empty });
  const size = (names) => names.reduce((sum, name) => sum + gzipSync(readFileSync(join(out, basename(name))), { level: 9 }).length, 0);
  const parts = Object.keys(made.metafile.outputs), first = new Set();
  const need = (name) => first.has(name) || (first.add(name), made.metafile.outputs[name].imports.forEach((one) => one.kind === "import-statement" && need(one.path)));
  need(parts.find((name) => basename(name) === "app.js"));
  const ahead = [...first].map((name) => `<link rel="modulepreload" href="${basename(name)}">\n`).join("");
  writeFileSync(join(out, "index.html"), readFileSync("index.html", "utf8").replace("</head>", `${ahead}</head>`));
  const sizes = [["first screen", size([...first]), 70000], ["all screens", size(parts), 120000], ["app.css", size(["app.css"]), 12000], ["inline.js", size(["inline.js"]), 120000], ["sandbox.js", size(["sandbox.js"]), 24000]];
  for (const [name, bytes, limit] of sizes) {
    console.log(`${name}  ${(bytes / 1000).toFixed(1)} kB gz`);
    if (bytes > limit) throw new Error(`${name} is ${bytes} bytes gzipped; its budget is ${limit}`);
  }
}
