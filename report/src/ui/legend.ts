// Model names with their colours.
import { modelColours } from "./colour";
import { el } from "./dom";
import { modelTitles } from "./format";

export function legend(models: { model: string; kind: string }[]): HTMLElement {
  const colours = modelColours(models.map((model) => model.kind));
  return el(
    "p",
    { class: "legend" },
    ...modelTitles(models).map((name, i) => {
      const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = colours[i]!;
      return el("span", {}, swatch, name);
    }),
  );
}
