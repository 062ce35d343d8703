// What is known of the node, link or head that was chosen in a trace.
import { blue, inkOn } from "./colour";
import type { Trace, TraceLink } from "./data";
import { el, type Child } from "./dom";
import { headPart } from "./inspect-head";
import { bars, headFlows, linkName, title, trial, type Choose } from "./inspect-parts";
import { parseHead } from "./maps";
import { nodeName, nodesById, sourceName } from "./trace-names";
import { count, percent, quoted, short, signed, visible } from "./words";

export function inspect(trace: Trace, pick: string, choose: Choose): Child[] {
  const [, kind, name] = /^(node|link|head):(.*)$/.exec(pick) ?? [];
  if (kind === "link" && trace.links[Number(name)]) return linkPart(trace, Number(name), choose);
  if (kind === "head" && parseHead(name!)) return headPart(trace, name!, choose);
  if (kind === "node" && nodesById(trace).has(name!)) return nodePart(trace, name!, choose);
  return startPart(trace, choose);
}

function startPart(trace: Trace, choose: Choose): Child[] {
  const flows = headFlows(trace).slice(0, 8);
  const { figures } = trace;
  const facts: [string, string][] = [
    ["kept of the output", percent(figures["influence_kept"])],
    ["began as errors of the transcoder", percent(figures["influence_of_errors"])],
    ["carried by attention", percent(figures["attention_share"])],
    ["correlation with interventions on heads", short(figures["head_correlation"])],
    ["correlation with interventions on features", short(figures["feature_correlation"])],
  ];
  return [
    el("p", { class: "how" }, "Choose a node, a link or a head: what it is made of appears here."),
    bars(
      "Heads that carry most",
      flows.map(([name, share]) => [name, share, () => choose(`head:${name}`), percent(share, 1)]),
    ),
    bars(
      "Links with most flow",
      [...trace.links.entries()]
        .sort((a, b) => b[1].flow - a[1].flow)
        .slice(0, 6)
        .map(([i, link]) => [linkName(trace, link), link.flow, () => choose(`link:${i}`), percent(link.flow, 1)]),
    ),
    el("h4", {}, "How far to trust it"),
    el(
      "dl",
      { class: "facts" },
      ...facts
        .filter(([, value]) => value !== "–")
        .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    ),
  ];
}

function linkPart(trace: Trace, place: number, choose: Choose): Child[] {
  const link = trace.links[place]!;
  const nodes = nodesById(trace);
  const found = trace.paths.find((each) => each.link === place);
  const end = (id: string) =>
    el("button", { type: "button", class: "plain", onclick: () => choose(`node:${id}`) }, sourceName(trace, id, nodes));
  return [
    title("", "Link"),
    el("p", {}, end(link.source), " → ", end(link.target)),
    el(
      "dl",
      { class: "facts" },
      el("div", {}, el("dt", {}, "weight"), el("dd", {}, signed(link.weight))),
      el("div", {}, el("dt", {}, "of the output"), el("dd", {}, percent(link.flow, 1))),
      el("div", {}, el("dt", {}, "straight, past all heads"), el("dd", {}, signed(link.straight))),
    ),
    bars(
      "Heads that carry it",
      link.heads.slice(0, 12).map(([name, value]) => [name, value, () => choose(`head:${name}`), signed(value)]),
    ),
    link.heads.length > 12
      ? el("p", { class: "quiet" }, `and ${count(link.heads.length - 12, "more head")} with less`)
      : null,
    link.heads.length ? null : el("p", { class: "quiet" }, "No head carries it: it goes along the residual stream."),
    found
      ? bars("In which order", [
          ...found.paths.map(([name, value]): [Child, number, null, string] => [name, value, null, signed(value)]),
          ["three heads or more", found.longer, null, signed(found.longer)],
        ])
      : null,
  ];
}

function nodePart(trace: Trace, id: string, choose: Choose): Child[] {
  const node = nodesById(trace).get(id)!;
  const links = [...trace.links.entries()];
  const nodes = nodesById(trace);
  const list = (name: string, own: [number, TraceLink][], other: (link: TraceLink) => string) =>
    bars(
      name,
      own
        .sort((a, b) => b[1].flow - a[1].flow)
        .slice(0, 8)
        .map(([i, link]) => [
          sourceName(trace, other(link), nodes),
          link.weight < 0 ? -link.flow : link.flow,
          () => choose(`link:${i}`),
          percent(link.flow, 1),
        ]),
    );
  const found = node.kind === "feature" ? trace.contexts[`${node.layer}_${node.number}`] : undefined;
  const tried = trace.interventions.find((each) => each.what === id);
  return [
    title(nodeName(trace, node), node.kind === "logit" ? "Output" : node.kind),
    node.kind === "feature" && node.label ? el("p", {}, visible(node.label, 120)) : null,
    el(
      "dl",
      { class: "facts" },
      el("div", {}, el("dt", {}, "of the output comes through it"), el("dd", {}, percent(node.influence, 1))),
      node.value === null
        ? null
        : el(
            "div",
            {},
            el("dt", {}, node.kind === "logit" ? "probability" : "activation"),
            el("dd", {}, node.kind === "logit" ? percent(node.value, 1) : short(node.value)),
          ),
      node.origin === null
        ? null
        : el(
            "div",
            {},
            el("dt", {}, "responds to"),
            el("dd", {}, `${node.origin + 1} ${quoted(trace.tokens[node.origin], 16)}`),
          ),
    ),
    tried ? trial(tried) : null,
    ...(found ? contextParts(found) : []),
    list(
      "Comes from",
      links.filter(([, link]) => link.target === id),
      (link) => link.source,
    ),
    list(
      "Goes to",
      links.filter(([, link]) => link.source === id),
      (link) => link.target,
    ),
  ];
}

function contextParts({ contexts, raised, lowered }: Trace["contexts"][string]): Child[] {
  const most = Math.max(1e-9, ...contexts.flatMap((each) => each.activations));
  const tokens = (name: string, list: [string, number][] | undefined) =>
    list?.length
      ? el(
          "p",
          {},
          el("b", {}, `${name}: `),
          ...list.slice(0, 10).map(([text, value]) => {
            const word = el("span", { class: "word" }, visible(text, 20));
            word.title = signed(value, 2);
            return word;
          }),
        )
      : null;
  return [
    el("h4", {}, "Where it is most active"),
    el(
      "ul",
      { class: "contexts" },
      ...contexts.slice(0, 8).map((each) =>
        el(
          "li",
          {},
          ...each.tokens.map((token, i) => {
            const share = Math.max(0, each.activations[i] ?? 0) / most;
            const word = el("span", { class: i === each.peak ? "word peak" : "word" }, visible(token, 24));
            if (share > 0.02) {
              word.style.background = blue(share);
              word.style.color = inkOn(share);
              word.title = short(each.activations[i]);
            }
            return word;
          }),
        ),
      ),
    ),
    tokens("Promotes", raised),
    tokens("Holds back", lowered),
  ];
}
