// The tooltip, of which there is one, and announcements to screen readers.
import { add, el, newId, replace, type Child } from "./dom";

const tooltip = el("div", { class: "tip", role: "tooltip", hidden: true });
const liveRegion = el("div", { class: "unseen", "aria-live": "polite" });

export function installTooltip(): void {
  document.body.append(tooltip, liveRegion);
  addEventListener("scroll", hideTooltip, { passive: true, capture: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideTooltip());
}

/** Show it beside a point of the window, inside the window. */
export function showTooltip(x: number, y: number, ...children: Child[]): void {
  replace(tooltip, ...children);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), innerWidth - width - 8);
  const top = y + 18 + height > innerHeight - 8 ? y - height - 12 : y + 18;
  tooltip.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
}

export function hideTooltip(): void {
  tooltip.hidden = true;
}

/** Show it while the pointer is over an element. */
export function tooltipOn(element: Element, text: string | (() => string)): void {
  element.addEventListener("pointermove", (event) => {
    const { clientX, clientY } = event as PointerEvent;
    showTooltip(clientX, clientY, typeof text === "string" ? text : text());
  });
  element.addEventListener("pointerleave", hideTooltip);
}

/** Have a screen reader read a text. */
export function announce(text: string): void {
  liveRegion.textContent = text;
}

/** Give an element a description: in the tooltip on hover and focus, and for screen readers. */
export function describe<E extends HTMLElement>(element: E, description: string): E {
  const id = newId();
  element.setAttribute("aria-describedby", id);
  tooltipOn(element, description);
  element.addEventListener("focus", () => {
    if (!element.matches(":focus-visible")) return;
    const { left, bottom } = element.getBoundingClientRect();
    showTooltip(left, bottom - 10, description);
  });
  element.addEventListener("blur", hideTooltip);
  add(element, el("span", { id, class: "unseen" }, description));
  return element;
}
