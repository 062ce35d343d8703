// Pictures that are drawn again when their place changes.
import type { Card } from "./card";
import { el, onResize, replace, zoom, type Child } from "./dom";
import type { View } from "./view";

/** Drawn again when its width changes. */
export function drawn({ section, body }: Card, draw: (width: number) => Child[]): View {
  const stage = el("div", {});
  body.append(stage);
  const again = () => stage.clientWidth && replace(stage, ...draw(stage.clientWidth / zoom()));
  onResize(stage, again);
  return { element: section, update: again };
}
