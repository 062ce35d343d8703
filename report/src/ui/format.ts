// Tokens, numbers and model names as text.
import type { Choice } from "./dom";

const MARKS: Record<string, string> = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣" };

/** A token as a label of limited length; white space and control characters (which could reorder text) become visible. */
export function visible(token: string | null | undefined, maxLength = 14): string {
  const text = String(token ?? "");
  const bare = text.slice(0, 4 * maxLength + 64).replace(/^ +| +$/g, "") || text.slice(0, maxLength) || "∅";
  const blank = /^\s+$/.test(bare);
  const marked = bare.replace(/[\n\r\t ]/g, (c) => (c === " " && !blank ? c : MARKS[c]!));
  const characters = [...marked.replace(/\p{C}/gu, "\ufffd")];
  return characters.length <= maxLength ? characters.join("") : `${characters.slice(0, maxLength - 1).join("")}…`;
}

export const quoted = (token: string | null | undefined, maxLength = 40): string => `“${visible(token, maxLength)}”`;

/** A share in percent, never rounded to 0 or 100. */
export function percent(share: number | null | undefined, digits = 0): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  const least = 0.5 * 10 ** -(digits + 2);
  if (share > 0 && share < least) return `<\u00a0${(100 * 2 * least).toFixed(digits)}\u00a0%`;
  if (share < 1 && share >= 1 - least) return `>\u00a0${(100 - 200 * least).toFixed(digits)}\u00a0%`;
  return `${(100 * share).toFixed(digits)}\u00a0%`.replace("-", "−");
}

export function signed(value: number | null | undefined, digits = 3): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
}

/** A number to three significant digits. */
export function shortNumber(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en").replace("-", "−");
  if (size !== 0 && size < 0.001) return value.toExponential(1).replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

export const plural = (count: number, noun: string): string =>
  `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** Display names of models: GPT2 and Sparse GPT2. */
export function modelTitles(models: { model: string; kind: string }[]): string[] {
  const base = models.map(({ model }) =>
    visible(String(model).split(/[\\/]/).filter(Boolean).pop() ?? "model", 28).replace(/^gpt/, "GPT"),
  );
  const own = models.map(({ kind }, i) =>
    kind === "dense" ? base[i]! : `Sparse ${base[i]!.replace(/[-_]?sparse$/, "") || base[i]!}`,
  );
  const dense = models.findIndex(({ kind }) => kind === "dense");
  if (models.length === 2 && models.filter(({ kind }) => kind === "dense").length === 1)
    return models.map((_, i) => (i === dense ? base[dense]! : `Sparse ${base[dense]!}`));
  return new Set(own).size === own.length ? own : base.map((name, i) => `${name} (${i + 1})`);
}

/** Choices whose values are their indices. */
export const indexChoices = (labels: string[]): Choice<number>[] => labels.map((label, value) => ({ value, label }));
