// The frame of a figure: title, how to read it, a link to it and downloads.
import type { Store } from "../store";
import { el, newId, type Child } from "./dom";
import { csvBlob, download, jsonBlob, pngBlob, svgBlob, type Cell } from "./download";
import { announce } from "./tooltip";

/** What can be downloaded: pictures as SVG and PNG, rows as CSV, the value as JSON. */
export interface Downloads {
  pictures?: () => SVGSVGElement[];
  rows?: () => Cell[][];
  value?: () => unknown;
}

export interface Card {
  section: HTMLElement;
  body: HTMLElement;
}

export function card(store: Store, title: string, howToRead: string, name: string, downloads: Downloads): Card {
  const id = newId();
  const body = el("div", { class: "body" });
  const actions = [linkButton(store), ...downloadButtons(title, name, downloads)];
  const section = el(
    "section",
    { class: `card ${name}`, "aria-labelledby": id },
    el(
      "header",
      {},
      el("div", {}, el("h2", { id }, title), el("p", { class: "how" }, howToRead)),
      el("div", { class: "actions", role: "group", "aria-label": `Link to ${title} and downloads` }, ...actions),
    ),
    body,
  );
  return { section, body };
}

function downloadButtons(title: string, name: string, { pictures, rows, value }: Downloads): Child[] {
  const button = (format: string, makeBlob: () => Blob | null | Promise<Blob | null>) =>
    el(
      "button",
      {
        type: "button",
        "aria-label": `Download ${title} as ${format.toUpperCase()}`,
        onclick: async () => {
          const blob = await makeBlob();
          if (blob) download(`edgewise-${name}.${format}`, blob);
        },
      },
      format.toUpperCase(),
    );
  return [
    pictures && button("svg", () => (pictures().length ? svgBlob(pictures()) : null)),
    pictures && button("png", () => (pictures().length ? pngBlob(pictures()) : null)),
    rows && button("csv", () => csvBlob(rows())),
    value && button("json", () => jsonBlob(value())),
  ];
}

function linkButton(store: Store): HTMLElement {
  const button = el(
    "button",
    {
      type: "button",
      onclick: async () => {
        const url = `${location.href.split("#", 1)[0]}${store.fragment}`;
        const message = (await copyToClipboard(url)) ? "Link copied" : "The link is in the address bar";
        button.textContent = message;
        announce(message);
        setTimeout(() => (button.textContent = "Link"), 1600);
      },
    },
    "Link",
  );
  button.title = "Copy a link to exactly this view";
  return button;
}

async function copyToClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // the browser does not allow it
  }
}
