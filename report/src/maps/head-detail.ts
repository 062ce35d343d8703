// The selected head, enlarged: its map in each model, and the text coloured by a query's attention weights.
import { importance } from "../selection";
import { weightColour, textOn } from "../ui/colour";
import type { Prompt, Task } from "../data";
import { el, replace } from "../ui/dom";
import { LargeMap } from "./large-map";
import { AttentionMaps, parseHead } from "./attention-maps";
import type { Store } from "../store";
import { plural, percent, quoted, modelTitles, visible } from "../ui/format";

export class HeadDetail {
  readonly element = el("section", { class: "detail", "aria-label": "Enlarged head", hidden: true });
  private readonly maps: LargeMap[];
  private readonly texts: HTMLElement[];
  private readonly facts: HTMLElement[];
  private readonly title = el("h3");
  private prompt: Prompt | null = null;
  private head = "";

  constructor(
    private readonly store: Store,
    models: number,
    private readonly step: (by: number) => void,
  ) {
    this.maps = Array.from({ length: models }, () => new LargeMap((query, select) => this.showQuery(query, select)));
    this.texts = this.maps.map(() => el("p", { class: "text" }));
    this.facts = this.maps.map(() => el("p", { class: "summary" }));
    const close = () => store.set({ open: false });
    this.element.addEventListener("keydown", (event) => event.key === "Escape" && close());
    this.element.append(
      el(
        "header",
        {},
        this.title,
        el(
          "div",
          { class: "actions" },
          el("button", { type: "button", "aria-label": "Previous head", onclick: () => this.step(-1) }, "←"),
          el("button", { type: "button", "aria-label": "Next head", onclick: () => this.step(1) }, "→"),
          el("button", { type: "button", "aria-label": "Close", onclick: close }, "✕"),
        ),
      ),
      el(
        "div",
        { class: "twins", onpointerleave: () => this.drawTexts(this.query()) },
        ...this.maps.map((map, i) => el("div", { class: "twin" }, this.facts[i]!, map.element, this.texts[i]!)),
      ),
      el(
        "p",
        { class: "how" },
        "Queries down, keys across. Hover over a row, or a token of the text, to see what that query attends to; click to keep it.",
      ),
    );
  }

  update(task: Task, prompt: Prompt): void {
    const { head, open } = this.store.state;
    const at = parseHead(head);
    const exists = prompt.maps.some(({ shape }) => at && at.layer < shape[0] && at.head < shape[1]);
    this.element.hidden = !open || !at || !exists;
    if (!open || !at || !exists) return;
    [this.prompt, this.head] = [prompt, head];
    this.title.textContent = head;
    const names = modelTitles(task.models);
    this.element.classList.toggle("long", prompt.tokens.length > 28);
    this.maps.forEach((map, i) => {
      const packed = prompt.maps[i];
      map.element.parentElement!.hidden = !packed;
      if (!packed) return;
      const maps = AttentionMaps.of(packed);
      if (at.layer >= maps.layers || at.head >= maps.heads) return;
      const type = prompt.types[i]?.[at.layer]?.[at.head] ?? "";
      const share = importance(task.models[i], head);
      replace(
        this.facts[i]!,
        el("b", {}, names[i]!),
        ` ${[type, share === undefined ? null : `importance ${percent(share, 1)}`, plural(maps.open(at.layer, at.head), "open edge")].filter(Boolean).join(" · ")}`,
      );
      map.update(maps, prompt.tokens, at, this.query(), type, names[i]!);
    });
    this.drawTexts(this.query());
  }

  private query(): number {
    const last = (this.prompt?.tokens.length ?? 1) - 1;
    const { query } = this.store.state;
    return query < 0 || query > last ? last : query;
  }

  private showQuery(query: number, select: boolean): void {
    this.drawTexts(query);
    if (select) this.store.set({ query });
  }

  private drawTexts(query: number): void {
    const at = parseHead(this.head);
    if (!at || !this.prompt) return;
    const { tokens } = this.prompt;
    this.maps.forEach((map) => map.showQuery(query)); // one row is framed: the hovered one, or else the selected
    this.texts.forEach((text, i) => {
      const packed = this.prompt!.maps[i];
      if (!packed) return;
      const weights = AttentionMaps.of(packed).row(at.layer, at.head, query);
      const best = weights.indexOf(Math.max(...weights));
      text.setAttribute(
        "aria-label",
        weights[best]
          ? `${quoted(tokens[query])} attends most to ${quoted(tokens[best])}, ${weights[best]!.toFixed(2)}`
          : `${quoted(tokens[query])} attends to no key`,
      );
      replace(
        text,
        ...tokens.map((token, position) => {
          const word = el(
            "span",
            {
              class: position === query ? "word query" : "word",
              onclick: () => this.showQuery(position, true),
              onpointerenter: () => this.hoverToken(position, query),
            },
            visible(token, 24),
          );
          const weight = weights[position] ?? 0;
          if (weight) {
            word.style.background = weightColour(weight);
            word.style.color = textOn(weight);
            word.title = weight.toFixed(3);
          }
          return word;
        }),
      );
    });
  }

  /** Drawing replaces the token under the pointer, which must not cause a drawing again. */
  private hoverToken(position: number, query: number): void {
    if (position !== query) this.drawTexts(position);
  }
}
