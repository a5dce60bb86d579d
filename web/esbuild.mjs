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

// A package's modules carry its licence into every file that they are bundled into: MIT asks for it in all copies.
const notices = new Map();
const licences = {
  name: "licences",
  setup: ({ onLoad }) => onLoad({ filter: /node_modules.*js$/ }, ({ path }) => {
    const [folder, name] = path.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)/);
    if (!notices.has(name)) {
      const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
      notices.set(name, `${name} ${version} (${license})\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`);
    }
    return { contents: `/*! ${notices.get(name)}*/\n${readFileSync(path, "utf8")}` };
  }),
};

if (process.argv.includes("--tests")) {
  await build({ ...common, entryPoints: sources("tests"), outdir: "build/tests", format: "esm", platform: "node", outExtension: { ".js": ".js" } });
} else {
  mkdirSync(out, { recursive: true });
  for (const name of readdirSync(out)) if (/-[A-Z0-9]{8}\.js$/.test(name)) rmSync(join(out, name)); // parts of an earlier build
  const page = { ...common, minify: true, legalComments: "eof", plugins: [licences], define: { "process.env.NODE_ENV": '"production"' } };
  const empty = { ".css": "empty" };
  const made = await build({ ...page, entryPoints: { app: "src/main.tsx" }, outdir: out, format: "esm", splitting: true, loader: empty, metafile: true });
  await build({ ...page, entryPoints: { inline: "src/main.tsx" }, outdir: out, format: "iife" });
  await build({ ...page, entryPoints: { widget: "src/widget.ts" }, outdir: out, format: "esm" });
  const bundled = "Code of others that is bundled in the page, each under its own licence. Glassformer itself is under the Apache License 2.0.\n";
  writeFileSync(join(out, "THIRD_PARTY.txt"), [bundled, ...[...notices.keys()].sort().map((name) => notices.get(name))].join(`\n${"-".repeat(80)}\n\n`));
  renameSync(join(out, "inline.css"), join(out, "app.css"));
  await build({ ...page, entryPoints: { sandbox: "src/sandbox.tsx" }, outdir: out, format: "iife", loader: empty });
  const size = (names) => names.reduce((sum, name) => sum + gzipSync(readFileSync(join(out, basename(name))), { level: 9 }).length, 0);
  const parts = Object.keys(made.metafile.outputs), first = new Set();
  const need = (name) => first.has(name) || (first.add(name), made.metafile.outputs[name].imports.forEach((one) => one.kind === "import-statement" && need(one.path)));
  need(parts.find((name) => basename(name) === "app.js"));
  const ahead = [...first].map((name) => `<link rel="modulepreload" href="${basename(name)}">\n`).join("");
  writeFileSync(join(out, "index.html"), readFileSync("index.html", "utf8").replace("</head>", `${ahead}</head>`));
  const sizes = [["first screen", size([...first]), 70000], ["all screens", size(parts), 124000], ["app.css", size(["app.css"]), 12000], ["inline.js", size(["inline.js"]), 120000], ["sandbox.js", size(["sandbox.js"]), 24000]];
  for (const [name, bytes, limit] of sizes) {
    console.log(`${name}  ${(bytes / 1000).toFixed(1)} kB gz`);
    if (bytes > limit) throw new Error(`${name} is ${bytes} bytes gzipped; its budget is ${limit}`);
  }
}
