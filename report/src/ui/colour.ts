// Colours: of attention weights (as edgewise.plots.style; exactly 0 is the background) and of models, light and dark.
import { scaleLinear } from "d3-scale";

const LIGHT = ["#ffffff", "#9ec1e6", "#2a6fbf", "#08306b"];
const DARK = ["#10151c", "#1f4f86", "#4f9be8", "#e6f2ff"];
const media = matchMedia("(prefers-color-scheme: dark)");
let forced: "light" | "dark" | null = null;
let printing = false; // always light
const listeners: (() => void)[] = [() => cssColours.clear()];
media.addEventListener("change", () => listeners.forEach((listener) => listener()));

export const isDark = (): boolean => !printing && (forced ? forced === "dark" : media.matches);

export function onTheme(listener: () => void): void {
  listeners.push(listener);
}

export function setTheme(theme: "light" | "dark" | null): void {
  forced = theme;
  if (theme) document.documentElement.dataset["theme"] = theme;
  else delete document.documentElement.dataset["theme"];
  listeners.forEach((listener) => listener());
}

export const isPrinting = (): boolean => printing;

export function setPrinting(on: boolean): void {
  if (on === printing) return;
  printing = on;
  if (on) document.documentElement.dataset["theme"] = "light";
  else if (forced) document.documentElement.dataset["theme"] = forced;
  else delete document.documentElement.dataset["theme"];
  listeners.forEach((listener) => listener());
}

const tables = new Map<boolean, Uint8ClampedArray>();

/** Colour map of attention weights in eight bits: red, green and blue of each. */
export function weightColours(): Uint8ClampedArray {
  let table = tables.get(isDark());
  if (!table) tables.set(isDark(), (table = makeTable()));
  return table;
}

function makeTable(): Uint8ClampedArray {
  const scale = scaleLinear<string>()
    .domain([0, 85, 170, 255])
    .range(isDark() ? DARK : LIGHT);
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const channels = /(\d+), (\d+), (\d+)/.exec(scale(i))!;
    for (let c = 0; c < 3; c++) table[3 * i + c] = Number(channels[c + 1]);
  }
  return table;
}

/** The colour of an attention weight from 0 to 1. */
export function weightColour(weight: number): string {
  const table = weightColours();
  const i = 3 * Math.round(255 * Math.min(1, Math.max(0, weight)));
  return `rgb(${table[i]}, ${table[i + 1]}, ${table[i + 2]})`;
}

/** Text colour on a cell of this weight. */
export const textOn = (weight: number): string => (weight > 0.5 !== isDark() ? "#ffffff" : "#15181d");

/** A custom property of the style sheet, in the present theme. */
export function colour(name: string): string {
  let value = cssColours.get(name);
  if (value === undefined)
    cssColours.set(name, (value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()));
  return value;
}

const cssColours = new Map<string, string>(); // cached: reading the style sheet forces a layout

/** Grey for the dense model, blue for its twin; two models of the same kind by their order. */
export function modelColours(kinds: string[]): string[] {
  if (kinds.length === 2 && kinds[0] === kinds[1]) return [colour("dense"), colour("twin")];
  return kinds.map((kind) => colour(kind === "dense" ? "dense" : "twin"));
}
