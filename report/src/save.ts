// Downloads: SVG, PNG, CSV and JSON, made in the page.
import { colour } from "./colour";
import { svg } from "./dom";

export type Cell = string | number | null | undefined;

export function offer(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A field that a spreadsheet would take for a formula is made text. */
export function csv(rows: Cell[][]): Blob {
  const field = (cell: Cell): string => {
    if (typeof cell === "number") return String(cell);
    const text = /^[=+\-@\t\r]/.test(cell ?? "") ? `'${cell}` : (cell ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return new Blob([rows.map((row) => `${row.map(field).join(",")}\r\n`).join("")], { type: "text/csv;charset=utf-8" });
}

export const json = (value: unknown): Blob => new Blob([JSON.stringify(value, null, 1)], { type: "application/json" });

const LOOKS = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "opacity",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];

/** A copy that looks the same elsewhere: what the style sheet says is written into its elements. */
function inlined(drawn: SVGSVGElement): SVGSVGElement {
  const copy = drawn.cloneNode(true) as SVGSVGElement;
  const from = [drawn, ...drawn.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  const usual = getComputedStyle(svg("g"));
  from.forEach((element, i) => {
    const look = getComputedStyle(element);
    if (look.display === "none") to[i]!.setAttribute("display", "none");
    for (const name of LOOKS) {
      const value = look.getPropertyValue(name);
      if (value && value !== usual.getPropertyValue(name)) to[i]!.setAttribute(name, value);
    }
    for (const name of ["class", "tabindex", "role"]) to[i]!.removeAttribute(name);
  });
  return copy;
}

interface Whole {
  text: string;
  width: number;
  height: number;
}

const GAP = 24;
const CAPTION = 26;

/** Pictures side by side, each under its caption if it has one on the page. */
function joined(pictures: SVGSVGElement[]): Whole {
  const captions = pictures.map((drawn) => drawn.closest("figure")?.querySelector("figcaption")?.textContent ?? "");
  const top = GAP / 2 + (captions.some(Boolean) ? CAPTION : 0);
  let width = GAP / 2;
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "sans-serif" });
  pictures.forEach((drawn, i) => {
    const box = drawn.viewBox.baseVal;
    const copy = inlined(drawn);
    copy.setAttribute("overflow", "visible"); // a label may stand out at the edge
    for (const [name, value] of Object.entries({ x: width, y: top, width: box.width, height: box.height }))
      copy.setAttribute(name, String(value));
    whole.append(svg("text", { x: width, y: top - 10, "font-size": 12, fill: colour("ink") }, captions[i]), copy);
    width += box.width + (i < pictures.length - 1 ? GAP : GAP / 2);
  });
  const height = top + Math.max(...pictures.map((drawn) => drawn.viewBox.baseVal.height)) + GAP / 2;
  whole.prepend(svg("rect", { width, height, fill: colour("ground") }));
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }))
    whole.setAttribute(name, String(value));
  // what XML does not allow has become a sign long before; this makes sure
  const text = new XMLSerializer()
    .serializeToString(whole)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return { text, width, height };
}

export const svgBlob = (pictures: SVGSVGElement[]): Blob =>
  new Blob([joined(pictures).text], { type: "image/svg+xml" });

/** At twice its size, but no larger than browsers draw. */
export async function pngBlob(pictures: SVGSVGElement[]): Promise<Blob> {
  const { text, width, height } = joined(pictures);
  const times = Math.min(2, 8000 / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * times);
  canvas.height = Math.ceil(height * times);
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("no picture")))));
}
