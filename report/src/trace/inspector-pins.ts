// Pinned nodes in the inspector: pin the selected one, name its group, export the groups as supernodes.
import type { Trace } from "../data";
import { el, newId, type Child } from "../ui/dom";
import { download, jsonBlob } from "../ui/download";
import { plural, visible } from "../ui/format";
import type { Select } from "./inspector-elements";
import { placeName } from "./node-names";
import { groupOf, pinned, queryParameters, unpinned, type Group } from "./pins";

export interface Pinning {
  groups: Group[];
  set: (groups: Group[]) => void;
}

/** Pin a node, and the group that it is in. */
export function pinControls(id: string, { groups, set }: Pinning): Child {
  const group = groupOf(groups, id);
  const change = () => set(group ? unpinned(groups, id) : pinned(groups, id, ""));
  const list = newId();
  const names = groups.filter(({ name }) => name).map(({ name }) => el("option", { value: name }));
  const input: HTMLInputElement = el("input", {
    type: "text",
    value: group?.name ?? "",
    maxlength: 40,
    list,
    placeholder: "name a group",
    onchange: () => set(pinned(groups, id, input.value)),
  });
  return el(
    "div",
    { class: "pin" },
    el("button", { type: "button", onclick: change }, group ? "Unpin" : "Pin"),
    group && el("label", { class: "field" }, el("span", {}, "Group"), input, el("datalist", { id: list }, ...names)),
  );
}

/** All pinned nodes by group, and their export. */
export function pinList(trace: Trace, { groups, set }: Pinning, select: Select): Child {
  if (!groups.length) return null;
  const count = groups.reduce((sum, { nodes }) => sum + nodes.length, 0);
  const save = () => download("edgewise-supernodes.json", jsonBlob({ qParams: queryParameters(trace, groups) }));
  const item = (id: string) => {
    const name = placeName(trace, id);
    const remove = { type: "button", class: "remove", "aria-label": `Unpin ${name}`, onclick: () => set(unpinned(groups, id)) };
    return el(
      "li",
      {},
      el("button", { type: "button", class: "plain", onclick: () => select(`node:${id}`) }, name),
      el("button", remove, "\u00d7"),
    );
  };
  return el(
    "section",
    { class: "pins", "aria-label": "Pinned nodes" },
    el("h4", {}, plural(count, "pinned node")),
    ...groups.map(({ name, nodes }) =>
      el("div", {}, el("p", { class: name ? "group" : "group quiet" }, name ? visible(name, 40) : "in no group"), el("ul", {}, ...nodes.map(item))),
    ),
    el(
      "div",
      { class: "actions" },
      el("button", { type: "button", onclick: save, title: "As supernodes for circuit-tracer's viewer and Neuronpedia" }, "Export as supernodes"),
      el("button", { type: "button", onclick: () => set([]) }, "Unpin all"),
    ),
  );
}
