// Keyboard access to the elements of a picture.

/** An element that can have the focus, and its position in the picture. */
export interface FocusTarget {
  element: SVGElement;
  x: number;
  y: number;
}

const DIRECTIONS: Record<string, [number, number]> = {
  ArrowRight: [1, 0],
  ArrowLeft: [-1, 0],
  ArrowDown: [0, 1],
  ArrowUp: [0, -1],
};

/** Make many elements one stop of the Tab key; from there an arrow key moves to the nearest in its direction. */
export function rovingTabindex(targets: FocusTarget[], first: SVGElement | undefined): void {
  const makeReachable = (element: SVGElement | undefined) =>
    targets.forEach((target) => target.element.setAttribute("tabindex", target.element === element ? "0" : "-1"));
  makeReachable(first ?? targets[0]?.element);
  for (const target of targets)
    target.element.addEventListener("keydown", (event) => {
      const direction = DIRECTIONS[event.key];
      if (!direction) return;
      event.preventDefault();
      const next = nearest(targets, target, direction);
      if (!next) return;
      makeReachable(next.element);
      next.element.focus();
    });
}

function nearest(targets: FocusTarget[], from: FocusTarget, [dx, dy]: [number, number]): FocusTarget | null {
  const distance = ({ x, y }: FocusTarget) => {
    const along = (x - from.x) * dx + (y - from.y) * dy;
    const across = Math.abs((x - from.x) * dy + (y - from.y) * dx);
    return along > 0.5 ? along + 2 * across : Infinity;
  };
  const next = targets.reduce((best, target) => (distance(target) < distance(best) ? target : best));
  return distance(next) === Infinity ? null : next;
}

/** Do the same on a click, Enter and Space. */
export function onPress(element: Element, act: () => void): void {
  element.addEventListener("click", act);
  element.addEventListener("keydown", (event) => {
    const { key } = event as KeyboardEvent;
    if (key !== "Enter" && key !== " ") return;
    event.preventDefault();
    act();
  });
}
