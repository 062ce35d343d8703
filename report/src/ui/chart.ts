// Line chart with bands and a dashed target; hover or arrow keys read its points.
import { scaleLinear, scaleSymlog } from "d3-scale";
import { area, line } from "d3-shape";
import { svg } from "./dom";
import { shortNumber } from "./format";
import { announce, hideTooltip, showTooltip } from "./tooltip";

export interface Series {
  name: string;
  colour: string;
  points: [number, number][];
  band?: [number, number, number][]; // x, lower, upper
  dots?: boolean; // single points, without a line and without an entry in the legend
}

export interface ChartOptions {
  width: number;
  label: string;
  xLabel: string;
  yLabel: string;
  series: Series[];
  symlog?: boolean; // x axis that spreads small counts
  y?: [number, number];
  target?: { value: number; label: string; below?: boolean }; // label at its right end, below it, where curves rise above it
  format?: (value: number) => string;
}

interface Scales {
  width: number;
  height: number;
  left: number;
  right: number;
  bottom: number;
  x: (value: number) => number;
  y: (value: number) => number;
  xTicks: number[];
  yTicks: number[];
}

const MARGIN = { top: 26, right: 14, bottom: 36, left: 48 };

export function chart(options: ChartOptions): SVGSVGElement {
  const scales = makeScales(options);
  const picture = svg("svg", {
    viewBox: `0 0 ${scales.width} ${scales.height}`,
    class: "chart",
    role: "img",
    "aria-label": `${options.label}. ${summary(options)}`,
    tabindex: 0,
  });
  picture.append(
    ...axes(options, scales),
    ...targetLine(options, scales),
    ...options.series.flatMap((series) => curve(series, scales)),
    ...legend(options.series, scales.right),
  );
  makeReadable(picture, options, scales);
  return picture;
}

function makeScales({ series, target, symlog, ...options }: ChartOptions): Scales {
  const width = Math.max(260, options.width);
  const height = Math.round(Math.min(300, Math.max(190, width * 0.5)));
  const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom];
  const points = series.flatMap((each) => each.points);
  const values = [...points.map(([, y]) => y), ...(target ? [target.value] : [])];
  const domain = options.y ?? [Math.min(0, ...values), Math.max(...values, 1e-9) * 1.05];
  const maxX = Math.max(1, ...points.map(([x]) => x));
  const linear = scaleLinear().domain([0, maxX]).range([left, right]);
  const x = symlog ? scaleSymlog().constant(3).domain([0, maxX]).range([left, right]) : linear;
  const y = scaleLinear().domain(domain).range([bottom, MARGIN.top]).clamp(true);
  const xTicks = symlog ? symlogTicks(maxX) : linear.ticks(Math.max(2, Math.floor(width / 110)));
  return { width, height, left, right, bottom, x, y, xTicks, yTicks: y.ticks(4) };
}

function axes({ xLabel, yLabel, format = shortNumber }: ChartOptions, scales: Scales): SVGElement[] {
  const { left, right, bottom, height, x, y } = scales;
  return [
    ...scales.yTicks.map((value) =>
      svg(
        "g",
        { class: "tick" },
        svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
        svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
      ),
    ),
    ...scales.xTicks.map((value) =>
      svg("text", { class: "tick", x: x(value), y: bottom + 16, "text-anchor": "middle" }, largeNumber(value)),
    ),
    svg("text", { class: "axis", x: right, y: height - 4, "text-anchor": "end" }, xLabel),
    svg("text", { class: "axis", x: 2, y: 12 }, yLabel),
  ];
}

function targetLine({ target }: ChartOptions, { left, right, y }: Scales): SVGElement[] {
  if (!target) return [];
  const at = y(target.value);
  const place = target.below ? { x: right - 4, y: at + 18, "text-anchor": "end" } : { x: left + 4, y: at - 5 };
  return [
    svg("line", { class: "target", x1: left, x2: right, y1: at, y2: at }),
    svg("text", { class: "target", ...place }, target.label),
  ];
}

function curve({ points, band, colour, dots }: Series, { x, y }: Scales): SVGElement[] {
  const circle = ([px, py]: [number, number]) =>
    svg("circle", { class: "point", cx: x(px), cy: y(py), r: 4.5, fill: colour });
  if (dots || points.length === 1) return points.map(circle);
  const bandShape = area<[number, number, number]>()
    .x((p) => x(p[0]))
    .y0((p) => y(p[1]))
    .y1((p) => y(p[2]));
  const lineShape = line<[number, number]>()
    .x((p) => x(p[0]))
    .y((p) => y(p[1]));
  return [
    ...(band?.length ? [svg("path", { d: bandShape(band) ?? "", fill: colour, "fill-opacity": 0.14 })] : []),
    svg("path", { d: lineShape(points) ?? "", fill: "none", stroke: colour, "stroke-width": 2 }),
  ];
}

/** Names of the series in their colours, from the right; one series needs none. */
function legend(all: Series[], right: number): SVGElement[] {
  const series = all.filter(({ dots }) => !dots);
  if (series.length < 2) return [];
  let end = right;
  return [...series].reverse().map(({ name, colour }) => {
    const text = svg("text", { class: "series", x: end, y: 12, "text-anchor": "end", fill: colour }, name);
    end -= 7 * name.length + 16;
    return text;
  });
}

/** The point nearest to the pointer, or reached by the arrow keys, gets a dot and a tooltip. */
function makeReadable(picture: SVGSVGElement, { series, xLabel, format = shortNumber }: ChartOptions, scales: Scales): void {
  const { x, y, width, height } = scales;
  const points = series
    .flatMap(({ name, colour, points }) => points.map(([px, py]) => ({ name, colour, px, py })))
    .sort((a, b) => a.px - b.px);
  const dot = svg("circle", { r: 4, class: "dot", visibility: "hidden" });
  picture.append(dot);
  let current = 0;
  const show = (spoken: boolean) => {
    const point = points[current];
    if (!point) return;
    const [cx, cy] = [x(point.px), y(point.py)];
    for (const [name, value] of Object.entries({ cx, cy, fill: point.colour, visibility: "visible" }))
      dot.setAttribute(name, String(value));
    const text = `${point.name}: ${format(point.py)} at ${point.px.toLocaleString("en")} ${xLabel}`;
    const box = picture.getBoundingClientRect();
    showTooltip(box.left + (cx * box.width) / width, box.top + (cy * box.height) / height, text);
    if (spoken) announce(text);
  };
  const hide = () => (hideTooltip(), dot.setAttribute("visibility", "hidden"));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const pointerX = ((event.clientX - box.left) * width) / box.width;
    const pointerY = ((event.clientY - box.top) * height) / box.height;
    const distance = (i: number) => Math.hypot(x(points[i]!.px) - pointerX, (y(points[i]!.py) - pointerY) / 2);
    points.forEach((_, i) => (current = distance(i) < distance(current) ? i : current));
    show(false);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    current = Math.min(Math.max(0, current + step), points.length - 1);
    show(true);
  });
}

const largeNumber = (value: number): string =>
  value >= 1e6
    ? `${shortNumber(value / 1e6)} M`
    : value >= 1e4
      ? `${shortNumber(value / 1e3)} k`
      : shortNumber(value);

function symlogTicks(max: number): number[] {
  const ticks = [0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000].filter((tick) => tick < 0.8 * max);
  return [...ticks, max];
}

const summary = ({ series, format = shortNumber, xLabel }: ChartOptions): string =>
  series
    .filter(({ points }) => points.length)
    .map(({ name, points }) => {
      const [x, y] = points[points.length - 1]!;
      return `${name} ends at ${format(y)} after ${x.toLocaleString("en")} ${xLabel}`;
    })
    .join("; ");
