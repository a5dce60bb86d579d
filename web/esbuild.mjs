// Builds the page into src/glassformer/static (committed), or the tests into web/build.
//   node esbuild.mjs            app.js, app.css, inline.js, index.html, sizes.json
//   node esbuild.mjs --out DIR  the same, elsewhere (to compare with what is committed)
//   node esbuild.mjs --tests    tests/*.test.ts -> build/tests
import { build } from "esbuild";
import { gzipSync } from "node:zlib";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
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
  const page = { ...common, minify: true, legalComments: "none", define: { "process.env.NODE_ENV": '"production"' } };
  await build({ ...page, entryPoints: { app: "src/main.tsx" }, outdir: out, format: "esm" });
  await build({ ...page, entryPoints: { inline: "src/main.tsx" }, outdir: out, format: "iife", loader: { ".css": "empty" } });
  writeFileSync(join(out, "index.html"), readFileSync("index.html"));
  const sizes = Object.fromEntries(["app.js", "app.css", "inline.js"].map((name) =>
    [name, gzipSync(readFileSync(join(out, name)), { level: 9 }).length]));
  for (const [name, size] of Object.entries(sizes)) console.log(`${name}  ${(size / 1000).toFixed(1)} kB gz`);
  const limits = { "app.js": 70000, "app.css": 12000, "inline.js": 120000 };
  for (const [name, limit] of Object.entries(limits))
    if (sizes[name] > limit) throw new Error(`${name} is ${sizes[name]} bytes gzipped; its budget is ${limit}`);
}
