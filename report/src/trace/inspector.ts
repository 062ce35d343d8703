// The inspector: details of the node, link or head that is selected in a trace, or an overview of the trace.
import type { Trace } from "../data";
import { parseHead } from "../maps/attention-maps";
import { el, type Child } from "../ui/dom";
import { percent, plural, signed } from "../ui/format";
import { bars, facts, headFlows, title, type Select } from "./inspector-elements";
import { inspectHead } from "./inspector-head";
import { inspectNode } from "./inspector-node";
import { pinControls, type Pinning } from "./inspector-pins";
import { linkName, nodesById, sourceName } from "./node-names";

const MAX_HEADS = 12;

export function inspect(trace: Trace, pick: string, select: Select, pinning: Pinning): Child[] {
  const [, kind, name] = /^(node|link|head):(.*)$/.exec(pick) ?? [];
  if (kind === "link" && trace.links[Number(name)]) return inspectLink(trace, Number(name), select);
  if (kind === "head" && parseHead(name!)) return inspectHead(trace, name!, select);
  if (kind === "node" && nodesById(trace).has(name!)) {
    const [heading, ...details] = inspectNode(trace, name!, select);
    return [heading, pinControls(name!, pinning), ...details];
  }
  return inspectTrace(trace, select);
}

function inspectTrace(trace: Trace, select: Select): Child[] {
  const heads = headFlows(trace).slice(0, 8);
  const links = [...trace.links.entries()].sort((a, b) => b[1].flow - a[1].flow).slice(0, 6);
  const { figures } = trace;
  const shares: [string, string][] = [
    ["influence kept by pruning", percent(figures["influence_kept"])],
    ["attributed to transcoder errors", percent(figures["influence_of_errors"])],
    ["carried by attention", percent(figures["attention_share"])],
  ];
  const section = (name: string, values: [string, string][]): Child[] => {
    const known = values.filter(([, value]) => value !== "–");
    return known.length ? [el("h4", {}, name), facts(...known)] : [];
  };
  return [
    el("p", { class: "how" }, "Select a node, a link or a head to see its details here."),
    bars(
      "Heads by share of the output",
      heads.map(([name, flow]) => ({
        name,
        value: flow,
        text: percent(flow, 1),
        onclick: () => select(`head:${name}`),
      })),
    ),
    bars(
      "Links by share of the output",
      links.map(([i, link]) => ({
        name: linkName(trace, link),
        value: link.flow,
        text: percent(link.flow, 1),
        onclick: () => select(`link:${i}`),
      })),
    ),
    ...section("Shares of the output", shares),
  ];
}

function inspectLink(trace: Trace, index: number, select: Select): Child[] {
  const link = trace.links[index]!;
  const nodes = nodesById(trace);
  const heads = link.heads.slice(0, MAX_HEADS);
  const others = link.heads.length - heads.length;
  const node = (id: string) =>
    el("button", { type: "button", class: "plain", onclick: () => select(`node:${id}`) }, sourceName(trace, id, nodes));
  return [
    title("", "Link"),
    el("p", {}, node(link.source), " → ", node(link.target)),
    facts(
      ["weight", signed(link.weight)],
      ["share of the output", percent(link.flow, 1)],
      ["direct, along the residual stream", signed(link.straight)],
    ),
    bars(
      "Head shares of the weight",
      heads.map(([name, value]) => ({ name, value, text: signed(value), onclick: () => select(`head:${name}`) })),
    ),
    others > 0 && el("p", { class: "quiet" }, `and ${plural(others, "more head")} with less`),
    !heads.length && el("p", { class: "quiet" }, "No head carries it: it is direct, along the residual stream."),
    pathBars(trace, index),
  ];
}

/** The largest paths of a link through one or two heads. */
function pathBars(trace: Trace, index: number): Child {
  const linkPaths = trace.paths.find(({ link }) => link === index);
  if (!linkPaths) return null;
  return bars("Paths through heads", [
    ...linkPaths.paths.map(([name, value]) => ({ name, value, text: signed(value) })),
    { name: "three or more heads", value: linkPaths.longer, text: signed(linkPaths.longer) },
  ]);
}
