// Downloads as SVG, PNG, CSV and JSON, made in the page.
import { colour } from "./colour";
import { svg } from "./dom";

export type Cell = string | number | null | undefined;

export function download(name: string, content: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Rows as CSV; fields that a spreadsheet would run as a formula are quoted. */
export function csvBlob(rows: Cell[][]): Blob {
  const field = (cell: Cell): string => {
    if (typeof cell === "number") return String(cell);
    const text = /^[=+\-@\t\r]/.test(cell ?? "") ? `'${cell}` : (cell ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return new Blob([rows.map((row) => `${row.map(field).join(",")}\r\n`).join("")], { type: "text/csv;charset=utf-8" });
}

export const jsonBlob = (value: unknown): Blob => new Blob([JSON.stringify(value, null, 1)], { type: "application/json" });

const STYLE_PROPERTIES = [
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

/** A copy with the style sheet's rules written into its elements, so that it looks the same elsewhere. */
function withInlineStyles(picture: SVGSVGElement): SVGSVGElement {
  const copy = picture.cloneNode(true) as SVGSVGElement;
  const from = [picture, ...picture.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  const defaults = getComputedStyle(svg("g"));
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    if (style.display === "none") to[i]!.setAttribute("display", "none");
    for (const name of STYLE_PROPERTIES) {
      const value = style.getPropertyValue(name);
      if (value && value !== defaults.getPropertyValue(name)) to[i]!.setAttribute(name, value);
    }
    for (const name of ["class", "tabindex", "role"]) to[i]!.removeAttribute(name);
  });
  return copy;
}

interface JoinedPicture {
  text: string;
  width: number;
  height: number;
}

const GAP = 24;
const CAPTION = 26;

/** Pictures side by side as one, each under its figure caption if it has one. */
function join(pictures: SVGSVGElement[]): JoinedPicture {
  const captions = pictures.map((picture) => picture.closest("figure")?.querySelector("figcaption")?.textContent ?? "");
  const top = GAP / 2 + (captions.some(Boolean) ? CAPTION : 0);
  let width = GAP / 2;
  const joint = svg("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "sans-serif" });
  pictures.forEach((picture, i) => {
    const box = picture.viewBox.baseVal;
    const copy = withInlineStyles(picture);
    copy.setAttribute("overflow", "visible"); // labels may extend beyond the edge
    for (const [name, value] of Object.entries({ x: width, y: top, width: box.width, height: box.height }))
      copy.setAttribute(name, String(value));
    joint.append(svg("text", { x: width, y: top - 10, "font-size": 12, fill: colour("ink") }, captions[i]), copy);
    width += box.width + (i < pictures.length - 1 ? GAP : GAP / 2);
  });
  const height = top + Math.max(...pictures.map((picture) => picture.viewBox.baseVal.height)) + GAP / 2;
  joint.prepend(svg("rect", { width, height, fill: colour("ground") }));
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }))
    joint.setAttribute(name, String(value));
  // characters that XML does not allow
  const text = new XMLSerializer()
    .serializeToString(joint)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
  return { text, width, height };
}

export const svgBlob = (pictures: SVGSVGElement[]): Blob =>
  new Blob([join(pictures).text], { type: "image/svg+xml" });

/** At double resolution, within the canvas size that browsers allow. */
export async function pngBlob(pictures: SVGSVGElement[]): Promise<Blob> {
  const { text, width, height } = join(pictures);
  const scale = Math.min(2, 8000 / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width * scale);
  canvas.height = Math.ceil(height * scale);
  canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture")))));
}
