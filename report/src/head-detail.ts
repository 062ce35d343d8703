// The lit head, enlarged: the same head in both twins, and the text with its attention drawn over it.
import { importance } from "./chosen";
import { blue, inkOn } from "./colour";
import type { Prompt, Task } from "./data";
import { el, replace } from "./dom";
import { LargeMap } from "./large-map";
import { Maps, parseHead } from "./maps";
import type { Store } from "./store";
import { count, percent, quoted, titles, visible } from "./words";

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
    this.maps = Array.from({ length: models }, () => new LargeMap((query, keep) => this.look(query, keep)));
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
        { class: "twins" },
        ...this.maps.map((map, i) => el("div", { class: "twin" }, this.facts[i]!, map.element, this.texts[i]!)),
      ),
      el(
        "p",
        { class: "how" },
        "Query down, key right. Hover a row, or a word of the text, to see what that query looks at; click to keep it.",
      ),
    );
  }

  update(task: Task, prompt: Prompt): void {
    const { head, open } = this.store.state;
    const at = parseHead(head);
    const has = prompt.maps.some(({ shape }) => at && at.layer < shape[0] && at.head < shape[1]);
    this.element.hidden = !open || !at || !has;
    if (!open || !at || !has) return;
    [this.prompt, this.head] = [prompt, head];
    this.title.textContent = head;
    const names = titles(task.models);
    this.element.classList.toggle("long", prompt.tokens.length > 28);
    this.maps.forEach((map, i) => {
      const packed = prompt.maps[i];
      map.element.parentElement!.hidden = !packed;
      if (!packed) return;
      const maps = Maps.of(packed);
      if (at.layer >= maps.layers || at.head >= maps.heads) return;
      const type = prompt.types[i]?.[at.layer]?.[at.head] ?? "";
      const share = importance(task.models[i], head);
      replace(
        this.facts[i]!,
        el("b", {}, names[i]!),
        ` ${[type, share === undefined ? null : `importance ${percent(share, 1)}`, count(maps.open(at.layer, at.head), "open edge")].filter(Boolean).join(" · ")}`,
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

  private look(query: number, keep: boolean): void {
    this.drawTexts(query);
    if (keep) this.store.set({ query });
  }

  private drawTexts(query: number): void {
    const at = parseHead(this.head);
    if (!at || !this.prompt) return;
    const { tokens } = this.prompt;
    this.texts.forEach((text, i) => {
      const packed = this.prompt!.maps[i];
      if (!packed) return;
      const row = Maps.of(packed).row(at.layer, at.head, query);
      const best = row.indexOf(Math.max(...row));
      text.setAttribute(
        "aria-label",
        row[best]
          ? `${quoted(tokens[query])} looks most at ${quoted(tokens[best])}, ${row[best]!.toFixed(2)}`
          : `${quoted(tokens[query])} looks at nothing`,
      );
      replace(
        text,
        ...tokens.map((token, place) => {
          const word = el(
            "span",
            {
              class: place === query ? "word query" : "word",
              onclick: () => this.look(place, true),
              onpointerenter: () => this.hoverWord(place, query),
            },
            visible(token, 24),
          );
          const weight = row[place] ?? 0;
          if (weight) {
            word.style.background = blue(weight);
            word.style.color = inkOn(weight);
            word.title = weight.toFixed(3);
          }
          return word;
        }),
      );
    });
  }

  /** Words are drawn anew for each query, so the one under the pointer must not ask for itself again. */
  private hoverWord(place: number, query: number): void {
    if (place !== query) this.drawTexts(place);
  }
}
