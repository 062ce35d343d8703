// A node in the inspector: influence, ablation, top activating contexts of a feature, incoming and outgoing links.
import type { FeatureContexts, Trace, TraceLink } from "../data";
import { textOn, weightColour } from "../ui/colour";
import { el, type Child } from "../ui/dom";
import { percent, shortNumber, signed, visible } from "../ui/format";
import { ablation, bars, facts, title, type Select } from "./inspector-elements";
import { nodeName, nodesById, sourceName, tokenAt } from "./node-names";

const MAX_LINKS = 8;
const MAX_CONTEXTS = 8;
const MAX_TOKENS = 10;

export function inspectNode(trace: Trace, id: string, select: Select): Child[] {
  const node = nodesById(trace).get(id)!;
  const isOutput = node.kind === "logit";
  const contexts = node.kind === "feature" ? trace.contexts[`${node.layer}_${node.number}`] : undefined;
  return [
    title(nodeName(trace, node), isOutput ? "Output" : node.kind),
    node.kind === "feature" && node.label ? el("p", {}, visible(node.label, 120)) : null,
    facts(
      ["influence on the output", percent(node.influence, 1)],
      node.value === null
        ? null
        : isOutput
          ? ["probability", percent(node.value, 1)]
          : ["activation", shortNumber(node.value)],
      node.origin === null ? null : ["responds to", tokenAt(trace, node.origin)],
    ),
    ablation(trace, id),
    ...(contexts ? featureContexts(contexts) : []),
    linkBars(trace, "Incoming links", (link) => (link.target === id ? link.source : null), select),
    linkBars(trace, "Outgoing links", (link) => (link.source === id ? link.target : null), select),
  ];
}

/** The links with most flow for which `other` gives the node at the other end. */
function linkBars(trace: Trace, label: string, other: (link: TraceLink) => string | null, select: Select): Child {
  const nodes = nodesById(trace);
  const links = [...trace.links.entries()]
    .filter(([, link]) => other(link) !== null)
    .sort((a, b) => b[1].flow - a[1].flow)
    .slice(0, MAX_LINKS);
  return bars(
    label,
    links.map(([i, link]) => ({
      name: sourceName(trace, other(link)!, nodes),
      value: link.weight < 0 ? -link.flow : link.flow,
      text: percent(link.flow, 1),
      onclick: () => select(`link:${i}`),
    })),
  );
}

function featureContexts({ contexts, raised, lowered }: FeatureContexts): Child[] {
  const max = Math.max(1e-9, ...contexts.flatMap((context) => context.activations));
  const items = contexts.slice(0, MAX_CONTEXTS).map(({ tokens, activations, peak }) => {
    const words = tokens.map((token, i) => {
      const word = el("span", { class: i === peak ? "word peak" : "word" }, visible(token, 24));
      const strength = Math.max(0, activations[i] ?? 0) / max;
      if (strength > 0.02) {
        word.style.background = weightColour(strength);
        word.style.color = textOn(strength);
        word.title = shortNumber(activations[i]);
      }
      return word;
    });
    return el("li", {}, ...words);
  });
  return [
    el("h4", {}, "Top activating contexts"),
    el("ul", { class: "contexts" }, ...items),
    tokenList("Promotes", raised),
    tokenList("Suppresses", lowered),
  ];
}

function tokenList(label: string, tokens: [string, number][] | undefined): Child {
  if (!tokens?.length) return null;
  const words = tokens.slice(0, MAX_TOKENS).map(([text, value]) => {
    const word = el("span", { class: "word" }, visible(text, 20));
    word.title = signed(value, 2);
    return word;
  });
  return el("p", {}, el("b", {}, `${label}: `), ...words);
}
