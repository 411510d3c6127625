// The graph of a job's sources, operators and sinks, with what flows between them.

import { definitions, element, setChildren, setText } from "./dom.js";
import { duration, number, percent, rate } from "./format.js";

/** The places of the nodes in pixels; the style sheet gives nodes the same size. */
const WIDTH = 208, HEIGHT = 148, GAP = 88, SPACE = 18;
/** Rates are those of the last half minute. */
const WINDOW_MS = 30_000;
const SVG = "http://www.w3.org/2000/svg";

/** The records that an attempt's operators had read and emitted at past commits, the oldest first. */
let samples = [];

/**
 * Draws the graph into `box`.
 * @param {Element} box @param {object} job of the API
 */
export function drawGraph(box, job) {
  const metrics = job.attempt?.metrics;
  const nodes = metrics?.graph.length ? metrics.graph
    : (metrics?.operators ?? []).map((one) => ({ uid: one.uid, kind: "OPERATOR", inputs: [] }));
  remember(job.attempt);
  const places = placesOf(nodes);
  const rates = new Map(nodes.map((node) => [node.uid, emitted(node, nodes, job)]));
  const [columns, rows] = [0, 1].map((axis) => Math.max(0, ...[...places.values()].map((at) => at[axis])) + 1);
  setChildren(box,
    edges(nodes, places, rates, columns * (WIDTH + GAP) - GAP, rows * (HEIGHT + SPACE) - SPACE),
    element("ol", { class: "graph-nodes", role: "list" }, ...nodes.map((node) => nodeOf(node, job, places.get(node.uid), rates.get(node.uid)))));
  return nodes.length > 0;
}

/** The column and row of each node: right of all its inputs, as near as possible to the middle of them. */
export function placesOf(nodes) {
  const columns = new Map();
  for (const { uid, inputs } of nodes) columns.set(uid, Math.max(-1, ...inputs.map((input) => columns.get(input) ?? -1)) + 1);
  const last = Math.max(0, ...columns.values());
  for (const { uid, kind } of nodes) if (kind === "SINK") columns.set(uid, last);
  const taken = new Map();
  const places = new Map();
  for (const { uid, inputs } of nodes) {
    const column = columns.get(uid);
    const wanted = inputs.length ? Math.min(...inputs.map((input) => places.get(input)?.[1] ?? 0)) : 0;
    const row = Math.max(wanted, taken.get(column) ?? 0);
    taken.set(column, row + 1);
    places.set(uid, [column, row]);
  }
  return places;
}

function remember(attempt) {
  const at = attempt?.last_commit_at_ms ?? null;
  if (at === null || !attempt.metrics || samples.at(-1)?.at === at) return;
  if (samples.at(-1)?.attempt !== attempt.number) samples = [];
  const totals = new Map(attempt.metrics.operators.map((one) => [one.uid, [one.read_records, one.write_records]]));
  samples.push({ attempt: attempt.number, at, totals });
  while (samples.at(-1).at - samples[1]?.at >= WINDOW_MS) samples.shift();
}

/** Records per second that an operator has read (0) or emitted (1) lately; null if that is not known. */
function rateOf(uid, index, job) {
  const [first, last] = [samples[0], samples.at(-1)];
  const before = first?.totals.get(uid), now = last?.totals.get(uid);
  if (!now || job.figures.input_rate === null) return null;
  if (Date.now() - last.at > WINDOW_MS) return 0;
  if (before && last.at > first.at) return (1000 * (now[index] - before[index])) / (last.at - first.at);
  // Only one commit was seen so far: its share of the job's input since the driver started.
  const all = job.attempt.metrics.input_records;
  return all ? (job.figures.input_rate * now[index]) / all : null;
}

/** Records per second that leave a node; null for sinks, and where it is not known. */
function emitted(node, nodes, job) {
  if (node.kind === "OPERATOR") return rateOf(node.uid, 1, job);
  if (node.kind === "SINK") return null;
  const only = nodes.filter((one) => one.kind === "SOURCE").length === 1;
  return only ? job.figures.input_rate : null;
}

function nodeOf(node, job, [column, row], flows) {
  const place = element("li", { class: "graph-node", "data-kind": node.kind.toLowerCase() },
    element("strong", { class: "mono" }, node.uid), ...contentOf(node, job, flows));
  place.style.left = `${column * (WIDTH + GAP)}px`;
  place.style.top = `${row * (HEIGHT + SPACE)}px`;
  return place;
}

function contentOf(node, job, flows) {
  const metrics = job.attempt.metrics;
  if (node.kind === "SOURCE") {
    return [element("small", { class: "soft" }, "source"), element("dl", {}, ...definitions([
      ["Arriving", rate(flows)], ["Records waiting", number(job.figures.lag_records)],
    ]))];
  }
  if (node.kind === "SINK") {
    const outage = metrics.sink_outage?.uid === node.uid;
    const refusing = metrics.sinks.find((one) => one.uid === node.uid);
    return [element("small", { class: "soft" }, "sink"), element("dl", {}, ...definitions([
      ["Arriving", rate(sum(node.inputs.map((uid) => rateOf(uid, 1, job))))], ["System", outage ? "away" : "answers"],
      ...(refusing ? [["Dead letters", number(refusing.dead_letters)]] : [])]))];
  }
  const operator = metrics.operators.find((one) => one.uid === node.uid);
  if (!operator) return [element("small", { class: "soft" }, "no batch yet")];
  const busy = Math.max(0, ...operator.subtasks.map((one) => one.busy_ratio));
  return [
    element("meter", { min: 0, max: 1, high: 0.8, value: busy.toFixed(2), "aria-label": `Busiest subtask ${percent(busy)}` }),
    element("dl", {}, ...definitions([
      ["Busiest subtask", percent(busy)],
      ["In, out", `${rate(rateOf(node.uid, 0, job))}, ${rate(flows)}`],
      ["Behind events", duration(operator.event_time_lag_ms)],
      ["Late, dead letters", `${number(operator.late_records)}, ${number(operator.dead_letters)}`],
    ])),
  ];
}

const sum = (values) => (values.length && values.every((value) => value !== null) ? values.reduce((all, one) => all + one, 0) : null);

function edges(nodes, places, rates, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "graph-edges" })) {
    svg.setAttribute(name, value);
  }
  for (const { uid, inputs } of nodes) {
    for (const input of inputs.filter((each) => places.has(each))) {
      const [fromColumn, fromRow] = places.get(input), [toColumn, toRow] = places.get(uid);
      const x0 = fromColumn * (WIDTH + GAP) + WIDTH, y0 = fromRow * (HEIGHT + SPACE) + HEIGHT / 2;
      const x1 = toColumn * (WIDTH + GAP), y1 = toRow * (HEIGHT + SPACE) + HEIGHT / 2;
      const bend = GAP / 2;
      svg.append(shape("path", { d: `M${x0} ${y0} C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1 - 6} ${y1}` }),
        shape("path", { class: "tip", d: `M${x1 - 8} ${y1 - 5} L${x1} ${y1} L${x1 - 8} ${y1 + 5} Z` }));
      const label = shape("text", { x: x0 + GAP / 2, y: (y0 + (toColumn - fromColumn === 1 ? y1 : y0)) / 2 - 8 });
      const flows = rates.get(input);
      setText(label, flows === null ? "" : rate(flows));
      svg.append(label);
    }
  }
  return svg;
}

function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}
