// Making elements. All elements are made here, and text only as text nodes: results are never parsed as markup.

type Value = string | number | boolean | null | undefined | ((event: never) => void);
export type Props = Record<string, Value>;
export type Child = Node | string | number | null | undefined | false;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), props, children);
}

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function fill<E extends Element>(element: E, props: Props, children: Child[]): E {
  for (const [name, value] of Object.entries(props)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  add(element, ...children);
  return element;
}

export function add(parent: Element, ...children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Replace the children; the focus moves from a removed element to the new one of the same name. */
export function replace(parent: Element, ...children: Child[]): void {
  const active = document.activeElement;
  const focused = active && active !== parent && parent.contains(active) ? identity(active) : null;
  parent.replaceChildren();
  add(parent, ...children);
  if (!focused || parent.contains(document.activeElement)) return;
  const focusable = [...parent.querySelectorAll<HTMLElement | SVGElement>("button, select, input, summary, [tabindex]")];
  focusable.find((element) => identity(element) === focused)?.focus({ preventScroll: true });
}

const identity = (element: Element): string =>
  `${element.tagName} ${element.getAttribute("aria-label") ?? element.closest("label")?.firstElementChild?.textContent ?? element.textContent}`;

let ids = 0;
export const newId = (): string => `id${++ids}`;

export interface Choice<T> {
  value: T;
  label: string;
}

/** A labelled list to choose from. */
export function select<T>(
  label: string,
  choices: Choice<T>[],
  chosen: T,
  choose: (value: T) => void,
): HTMLLabelElement {
  const box = el("select", { onchange: () => choose(choices[box.selectedIndex]!.value) });
  choices.forEach(({ label }) => box.append(el("option", {}, label)));
  box.selectedIndex = Math.max(
    0,
    choices.findIndex(({ value }) => value === chosen),
  );
  return el("label", { class: "field" }, el("span", {}, label), box);
}

/** A few choices side by side, of which one is pressed. */
export function segments<T>(label: string, choices: Choice<T>[], chosen: T, choose: (value: T) => void): HTMLElement {
  const buttons = choices.map(({ value, label: text }) =>
    el(
      "button",
      { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) },
      text,
    ),
  );
  return el(
    "div",
    { class: "field", role: "group", "aria-label": label },
    el("span", { "aria-hidden": "true" }, label),
    el("div", { class: "segments" }, ...buttons),
  );
}

/** Scale of pictures: they grow with the font size, which is larger on very large screens. */
export const zoom = (): number => parseFloat(getComputedStyle(document.documentElement).fontSize) / 15 || 1;

/** Call `act` when the element is first shown and when its width changes. */
export function onResize(element: Element, act: (width: number) => void): void {
  let last = 0;
  new ResizeObserver(() => {
    const width = element.clientWidth;
    if (width > 0 && width !== last) {
      last = width;
      act(width);
    }
  }).observe(element);
}
