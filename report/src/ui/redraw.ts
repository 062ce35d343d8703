// Figures that follow the width of their card.
import type { Card } from "./card";
import { el, onResize, replace, zoom, type Child } from "./dom";
import type { View } from "./view";

/** Fill a card with what `draw` makes for its width, again on each change of the width and each update. */
export function redrawOnResize({ section, body }: Card, draw: (width: number) => Child[]): View {
  const stage = el("div", {});
  body.append(stage);
  const redraw = () => stage.clientWidth && replace(stage, ...draw(stage.clientWidth / zoom()));
  onResize(stage, redraw);
  return { element: section, update: redraw };
}

/** Width of each of some figures: two side by side where there is room. */
export const figureWidth = (width: number, count: number, maxWidth: number): number =>
  width > 700 && count > 1 ? (width - 24) / 2 : Math.min(width, maxWidth);
