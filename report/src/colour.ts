// Colours of the figures (edgewise.drawing), and the same in the dark: white is exactly 0 there, near-black here.
import { scaleLinear } from "d3-scale";

const LIGHT = ["#ffffff", "#9ec1e6", "#2a6fbf", "#08306b"];
const DARK = ["#10151c", "#1f4f86", "#4f9be8", "#e6f2ff"];
const media = matchMedia("(prefers-color-scheme: dark)");
let forced: "light" | "dark" | null = null;
let printing = false; // on paper everything is light
const listeners: (() => void)[] = [() => asked.clear()];
media.addEventListener("change", () => listeners.forEach((each) => each()));

export const isDark = (): boolean => !printing && (forced ? forced === "dark" : media.matches);

export function onTheme(listener: () => void): void {
  listeners.push(listener);
}

export function setTheme(theme: "light" | "dark" | null): void {
  forced = theme;
  if (theme) document.documentElement.dataset["theme"] = theme;
  else delete document.documentElement.dataset["theme"];
  listeners.forEach((each) => each());
}

export const isPrinting = (): boolean => printing;

export function setPrinting(on: boolean): void {
  if (on === printing) return;
  printing = on;
  if (on) document.documentElement.dataset["theme"] = "light";
  else if (forced) document.documentElement.dataset["theme"] = forced;
  else delete document.documentElement.dataset["theme"];
  listeners.forEach((each) => each());
}

const tables = new Map<boolean, Uint8ClampedArray>();

/** Of a weight from 0 to 255: red, green, blue. */
export function blues(): Uint8ClampedArray {
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
    const parts = /(\d+), (\d+), (\d+)/.exec(scale(i))!;
    for (let c = 0; c < 3; c++) table[3 * i + c] = Number(parts[c + 1]);
  }
  return table;
}

export function blue(weight: number): string {
  const table = blues();
  const i = 3 * Math.round(255 * Math.min(1, Math.max(0, weight)));
  return `rgb(${table[i]}, ${table[i + 1]}, ${table[i + 2]})`;
}

/** Ink that can be read on a cell of this weight. */
export const inkOn = (weight: number): string => (weight > 0.5 !== isDark() ? "#ffffff" : "#15181d");

/** A colour of the style sheet, as it is now. */
export function colour(name: string): string {
  let value = asked.get(name);
  if (value === undefined)
    asked.set(name, (value = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()));
  return value;
}

const asked = new Map<string, string>(); // asking the style sheet while a slider moves would cost a layout each time

/** Grey for the dense model, blue for its twin; two of a kind are told apart by their order. */
export function modelColours(kinds: string[]): string[] {
  if (kinds.length === 2 && kinds[0] === kinds[1]) return [colour("dense"), colour("twin")];
  return kinds.map((kind) => colour(kind === "dense" ? "dense" : "twin"));
}
