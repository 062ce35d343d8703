// Bundle the page into the Python package: `npm ci && npm run build`. Builds are reproducible byte for byte;
// `node build.mjs FOLDER` builds into another folder, to compare.
import { copyFile, mkdir } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { build } from "esbuild";

const [folder] = process.argv.slice(2);
const assets = folder ? pathToFileURL(`${folder}/`) : new URL("../src/edgewise/reporting/assets/", import.meta.url);
await mkdir(assets, { recursive: true });
await build({
  entryPoints: ["src/main.ts"],
  outfile: new URL("app.js", assets).pathname,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii", // the hash in the content security policy must not depend on the encoding
  legalComments: "inline",
});
await build({
  entryPoints: ["src/style.css"],
  outfile: new URL("style.css", assets).pathname,
  minify: true,
  charset: "ascii",
});
await copyFile(new URL("src/page.html", import.meta.url), new URL("page.html", assets));
