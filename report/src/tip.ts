// One tooltip for everything. It follows the pointer and the focus; what it says is there for screen readers too.
import { add, el, newId, replace, type Child } from "./dom";

const box = el("div", { class: "tip", role: "tooltip", hidden: true });
const spoken = el("div", { class: "unseen", "aria-live": "polite" });

export function installTip(): void {
  document.body.append(box, spoken);
  addEventListener("scroll", hideTip, { passive: true, capture: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
}

export function showTip(x: number, y: number, ...children: Child[]): void {
  replace(box, ...children);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), innerWidth - width - 8);
  const top = y + 18 + height > innerHeight - 8 ? y - height - 12 : y + 18;
  box.style.transform = `translate(${Math.max(8, left)}px, ${Math.max(8, top)}px)`;
}

export function hideTip(): void {
  box.hidden = true;
}

/** Read aloud where a picture cannot be. */
export function say(text: string): void {
  spoken.textContent = text;
}

/** Say what an element means, on hover and focus. */
export function explain<E extends HTMLElement>(element: E, meaning: string): E {
  const id = newId();
  const described = el("span", { id, class: "unseen" }, meaning);
  element.setAttribute("aria-describedby", id);
  element.addEventListener("pointermove", (event) => showTip(event.clientX, event.clientY, meaning));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    if (!element.matches(":focus-visible")) return;
    const { left, bottom } = element.getBoundingClientRect();
    showTip(left, bottom - 10, meaning);
  });
  element.addEventListener("blur", hideTip);
  add(element, described);
  return element;
}
