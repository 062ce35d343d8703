// Many things in a picture are one stop of the Tab key; the arrow keys go on from there to the nearest in their direction.

export interface Stop {
  element: SVGElement;
  x: number;
  y: number;
}

export function rove(stops: Stop[], first: SVGElement | undefined): void {
  const reach = (element: SVGElement | undefined) =>
    stops.forEach((stop) => stop.element.setAttribute("tabindex", stop.element === element ? "0" : "-1"));
  reach(first ?? stops[0]?.element);
  for (const { element, x, y } of stops)
    element.addEventListener("keydown", (event) => {
      const way = ({ ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] } as const)[
        event.key as "ArrowUp"
      ];
      if (!way) return;
      event.preventDefault();
      const far = (stop: Stop) => {
        const [along, across] = [
          (stop.x - x) * way[0] + (stop.y - y) * way[1],
          Math.abs((stop.x - x) * way[1] + (stop.y - y) * way[0]),
        ];
        return along > 0.5 ? along + 2 * across : Infinity;
      };
      const next = stops.reduce((best, stop) => (far(stop) < far(best) ? stop : best));
      if (far(next) === Infinity) return;
      reach(next.element);
      next.element.focus();
    });
}

/** Enter, Space and a click do the same. */
export function press(element: Element, act: () => void): void {
  element.addEventListener("click", act);
  element.addEventListener("keydown", (event) => {
    const { key } = event as KeyboardEvent;
    if (key !== "Enter" && key !== " ") return;
    event.preventDefault();
    act();
  });
}
