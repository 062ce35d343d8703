// Attention maps as pictures: a small canvas per head with a pixel per cell, scaled up without smoothing.
import { onTheme, weightColours } from "../ui/colour";
import { svg } from "../ui/dom";
import type { AttentionMaps } from "./attention-maps";

let cache = new WeakMap<AttentionMaps, Map<string, HTMLCanvasElement>>();
onTheme(() => (cache = new WeakMap()));

/** A canvas of at most `maxSide` pixels; cells that share a pixel show their largest weight, so that no edge is lost. */
export function mapCanvas(maps: AttentionMaps, layer: number, head: number, maxSide: number): HTMLCanvasElement {
  const cellsPerPixel = Math.max(1, Math.ceil(maps.length / Math.max(1, Math.floor(maxSide))));
  let canvases = cache.get(maps);
  if (!canvases) cache.set(maps, (canvases = new Map()));
  const key = `${layer}.${head}.${cellsPerPixel}`;
  let canvas = canvases.get(key);
  if (!canvas) canvases.set(key, (canvas = drawMap(maps, layer, head, cellsPerPixel)));
  return canvas;
}

function drawMap(maps: AttentionMaps, layer: number, head: number, cellsPerPixel: number): HTMLCanvasElement {
  const side = Math.ceil(maps.length / cellsPerPixel);
  const largest = new Uint8Array(side * side);
  for (let query = 0; query < maps.length; query++)
    for (let key = 0; key <= query; key++) {
      const pixel = Math.floor(query / cellsPerPixel) * side + Math.floor(key / cellsPerPixel);
      largest[pixel] = Math.max(largest[pixel]!, maps.byte(layer, head, query, key));
    }
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(side, side);
  const colours = weightColours();
  largest.forEach((weight, pixel) => {
    for (let c = 0; c < 3; c++) image.data[4 * pixel + c] = colours[3 * weight + c]!;
    image.data[4 * pixel + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

export interface Box {
  x: number;
  y: number;
  side: number;
}

/** A map inside an SVG, as an image with several pixels per cell, so that viewers that smooth images do not blur it. */
export function mapImage(maps: AttentionMaps, layer: number, head: number, { x, y, side }: Box): SVGImageElement {
  const small = mapCanvas(maps, layer, head, 2 * side);
  const scale = Math.max(1, Math.floor(128 / small.width));
  const large = document.createElement("canvas");
  large.width = large.height = small.width * scale;
  const context = large.getContext("2d")!;
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, large.width, large.height);
  return svg("image", { href: large.toDataURL(), x, y, width: side, height: side, preserveAspectRatio: "none" });
}
