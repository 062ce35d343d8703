// A view's frame: its title, a sentence on how to read it, its link and its downloads.
import { el, newId, type Child } from "./dom";
import { csv, json, offer, pngBlob, svgBlob, type Cell } from "./save";
import type { Store } from "./store";
import { say } from "./tip";

export interface Contents {
  pictures?: () => SVGSVGElement[];
  rows?: () => Cell[][];
  value?: () => unknown;
}

export interface Card {
  section: HTMLElement;
  body: HTMLElement;
}

export function card(store: Store, title: string, how: string, name: string, contents: Contents): Card {
  const id = newId();
  const body = el("div", { class: "body" });
  const actions: Child[] = [linkButton(store)];
  const { pictures, rows, value } = contents;
  const download = (ending: string, make: () => Blob | null | Promise<Blob | null>) =>
    actions.push(
      el(
        "button",
        {
          type: "button",
          "aria-label": `Download ${title} as ${ending.toUpperCase()}`,
          onclick: async () => {
            const made = await make();
            if (made) offer(`edgewise-${name}.${ending}`, made);
          },
        },
        ending.toUpperCase(),
      ),
    );
  if (pictures) {
    download("svg", () => (pictures().length ? svgBlob(pictures()) : null));
    download("png", () => (pictures().length ? pngBlob(pictures()) : null));
  }
  if (rows) download("csv", () => csv(rows()));
  if (value) download("json", () => json(value()));
  const section = el(
    "section",
    { class: `card ${name}`, "aria-labelledby": id },
    el(
      "header",
      {},
      el("div", {}, el("h2", { id }, title), el("p", { class: "how" }, how)),
      el("div", { class: "actions", role: "group", "aria-label": `Link to ${title} and downloads` }, ...actions),
    ),
    body,
  );
  return { section, body };
}

function linkButton(store: Store): HTMLElement {
  const button = el(
    "button",
    {
      type: "button",
      onclick: async () => {
        const address = `${location.href.split("#", 1)[0]}${store.fragment}`;
        const said = (await copied(address)) ? "Link copied" : "The link is in the address bar";
        button.textContent = said;
        say(said);
        setTimeout(() => (button.textContent = "Link"), 1600);
      },
    },
    "Link",
  );
  button.title = "Copy a link that shows exactly this";
  return button;
}

async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // not allowed here
  }
}
