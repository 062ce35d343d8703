// Bundles the page once, into the Python package: `npm ci && npm run build`. The same sources give the same bytes, wherever
// they are built; `node build.mjs FOLDER` builds them elsewhere, to compare.
import { copyFile, mkdir } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { build } from "esbuild";

const [elsewhere] = process.argv.slice(2);
const assets = elsewhere ? pathToFileURL(`${elsewhere}/`) : new URL("../src/edgewise/report/assets/", import.meta.url);
await mkdir(assets, { recursive: true });
await build({
  entryPoints: ["src/main.ts"],
  outfile: new URL("app.js", assets).pathname,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "ascii", // the page's hash must not depend on how somebody reads the file
  legalComments: "inline",
});
await build({
  entryPoints: ["src/style.css"],
  outfile: new URL("style.css", assets).pathname,
  minify: true,
  charset: "ascii",
});
await copyFile(new URL("src/page.html", import.meta.url), new URL("page.html", assets));
