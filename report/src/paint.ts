// Maps as pictures: one small canvas for each head, in which a cell is a dot; larger ones are drawn from it without smoothing.
import { blues, onTheme } from "./colour";
import { svg } from "./dom";
import type { Maps } from "./maps";

let known = new WeakMap<Maps, Map<string, HTMLCanvasElement>>();
onTheme(() => (known = new WeakMap()));

/** With so many dots a side at most: where cells must share a dot, the heaviest is shown, so that no line is lost. */
export function painted(maps: Maps, layer: number, head: number, dots: number): HTMLCanvasElement {
  const by = Math.max(1, Math.ceil(maps.length / Math.max(1, Math.floor(dots))));
  let pictures = known.get(maps);
  if (!pictures) known.set(maps, (pictures = new Map()));
  const name = `${layer}.${head}.${by}`;
  let picture = pictures.get(name);
  if (!picture) pictures.set(name, (picture = paint(maps, layer, head, by)));
  return picture;
}

function paint(maps: Maps, layer: number, head: number, by: number): HTMLCanvasElement {
  const side = Math.ceil(maps.length / by);
  const most = new Uint8Array(side * side);
  for (let query = 0; query < maps.length; query++)
    for (let key = 0; key <= query; key++) {
      const at = Math.floor(query / by) * side + Math.floor(key / by);
      most[at] = Math.max(most[at]!, maps.byte(layer, head, query, key));
    }
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(side, side);
  const table = blues();
  most.forEach((weight, at) => {
    for (let c = 0; c < 3; c++) image.data[4 * at + c] = table[3 * weight + c]!;
    image.data[4 * at + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

/** A map inside an SVG, as an image whose cells are several dots, so that viewers that smooth images do not blur it. */
export function mapImage(maps: Maps, layer: number, head: number, x: number, y: number, side: number): SVGImageElement {
  const small = painted(maps, layer, head, 2 * side);
  const times = Math.max(1, Math.floor(128 / small.width));
  const large = document.createElement("canvas");
  large.width = large.height = small.width * times;
  const context = large.getContext("2d")!;
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, large.width, large.height);
  return svg("image", { href: large.toDataURL(), x, y, width: side, height: side, preserveAspectRatio: "none" });
}
