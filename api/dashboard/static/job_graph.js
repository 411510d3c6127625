// The graph of a job's sources, operators and sinks, with the flow between them.

import { byId, definitions, element, setChildren, setText } from "./dom.js";
import { duration, NONE, number, percent, rate } from "./format.js";

/** The places of the nodes in pixels; the style sheet gives nodes the same size. */
const WIDTH = 224, HEIGHT = 190, GAP = 88, SPACE = 18;
const SVG = "http://www.w3.org/2000/svg";

/** The nodes that were drawn last: a new driver reports no nodes before its first batch. */
let lastNodes = [];

/**
 * Draws the graph into `box`.
 * @param {Element} box @param {object} job of the API
 * @returns {boolean} whether there is one
 */
export function drawGraph(box, job) {
  const metrics = job.status.attempt?.metrics;
  const told = metrics?.graph.length ? metrics.graph
    : (metrics?.operators ?? []).map((one) => ({ uid: one.uid, kind: "OPERATOR", inputs: [] }));
  const nodes = lastNodes = told.length ? told : lastNodes;
  const places = placesOf(nodes);
  const rates = new Map(nodes.map((node) => [node.uid, emitted(node, nodes, job)]));
  const flows = (from, to) => flow(from, to, nodes, rates, job);
  const [columns, rows] = [0, 1].map((axis) => Math.max(0, ...[...places.values()].map((at) => at[axis])) + 1);
  setChildren(box,
    edges(nodes, places, flows, columns * (WIDTH + GAP) - GAP, rows * (HEIGHT + SPACE) - SPACE),
    element("ol", { class: "graph-nodes", role: "list" }, ...nodes.map((node) => nodeOf(node, places.get(node.uid), contentOf(node, nodes, job, rates.get(node.uid), flows)))));
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

/** Records per second that an operator reads, or emits; null if that is not known. */
function rateOf(uid, name, job) {
  const operator = job.status.attempt?.metrics?.operators.find((one) => one.uid === uid);
  return job.metrics.input_rate === null ? null : operator?.[`${name}_records_per_second`] ?? null;
}

/** Records per second that leave a node; null for sinks, and where it is not known. */
function emitted(node, nodes, job) {
  if (node.kind === "OPERATOR") return rateOf(node.uid, "write", job);
  if (node.kind === "SINK") return null;
  return isOnlySource(nodes) ? job.metrics.input_rate : null;
}

const isOnlySource = (nodes) => nodes.filter((one) => one.kind === "SOURCE").length === 1;

/** Records per second from one node to another; null where that is not known: an operator counts all its outputs together. */
function flow(from, to, nodes, rates, job) {
  const isOperator = (uid) => nodes.find((one) => one.uid === uid)?.kind === "OPERATOR";
  if (!isOperator(from) || nodes.filter((one) => one.inputs.includes(from)).length === 1) return rates.get(from) ?? null;
  return isOperator(to.uid) && to.inputs.length === 1 ? rateOf(to.uid, "read", job) : null;
}

function nodeOf(node, [column, row], content) {
  const place = element("li", { class: "graph-node", "data-kind": node.kind.toLowerCase() },
    element("strong", { class: "mono", title: node.uid }, node.uid), ...content);
  place.style.left = `${column * (WIDTH + GAP)}px`;
  place.style.top = `${row * (HEIGHT + SPACE)}px`;
  return place;
}

function contentOf(node, nodes, job, emits, flows) {
  const metrics = job.status.attempt?.metrics;
  const isNow = job.metrics.input_rate !== null;
  if (node.kind === "SOURCE") {
    return [element("small", { class: "soft" }, "source"), element("dl", {}, ...definitions([
      ["Arriving", rate(emits)],
      ...(isOnlySource(nodes) ? [["Records waiting", number(isNow ? job.metrics.lag_records : null)]] : []),
    ]))];
  }
  if (node.kind === "SINK") {
    const outage = metrics?.sink_outage?.uid === node.uid;
    const own = metrics?.sinks.find((one) => one.uid === node.uid);
    const counters = own ? countersOf(own) : [];
    return [element("small", { class: "soft" }, "sink"), element("dl", {}, ...definitions([
      ["Arriving", rate(sum(node.inputs.map((uid) => flows(uid, node))))],
      ["System", isNow ? (outage ? "away" : "answers") : NONE],
      ["Per batch", duration(isNow ? own?.write_ms : null)]])),
    ...(counters.length ? sinceStart(counters) : [])];
  }
  const operator = metrics?.operators.find((one) => one.uid === node.uid);
  if (!operator) return [element("small", { class: "soft" }, "no batch yet")];
  // The subtasks' metrics come from the last batch, which may be long ago.
  const busy = !isNow ? null : job.metrics.busy_ratio ? Math.max(0, ...operator.subtasks.map((one) => one.busy_ratio)) : 0;
  return [
    busy === null ? null
      : element("meter", { min: 0, max: 1, high: 0.8, value: busy.toFixed(2), "aria-label": `Busiest subtask ${percent(busy)}` }),
    element("dl", {}, ...definitions([
      ["Busiest subtask", percent(busy)],
      ["In, out", `${rate(rateOf(node.uid, "read", job))}, ${rate(emits)}`],
      ["Lag", duration(isNow ? operator.event_time_lag_ms : null)],
    ])),
    ...sinceStart(countersOf(operator)),
  ];
}

/** The declared counters that an operator or a sink has. */
const countersOf = (part) => JSON.parse(byId("charts").dataset.counters).filter(({ name }) => (part[name] ?? null) !== null)
  .map(({ name, label }) => [label, number(part[name])]);

/** Counters of the driver, which begins at zero; the counters of the whole job are at the top of the page. */
const sinceStart = (pairs) => [element("small", { class: "soft since-start" }, "since the driver started"),
  element("dl", {}, ...definitions(pairs))];

const sum = (values) => (values.length && values.every((value) => value !== null) ? values.reduce((all, one) => all + one, 0) : null);

function edges(nodes, places, flows, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "graph-edges" })) {
    svg.setAttribute(name, value);
  }
  for (const node of nodes) {
    const { uid, inputs } = node;
    for (const input of inputs.filter((each) => places.has(each))) {
      const [fromColumn, fromRow] = places.get(input), [toColumn, toRow] = places.get(uid);
      const x0 = fromColumn * (WIDTH + GAP) + WIDTH, y0 = fromRow * (HEIGHT + SPACE) + HEIGHT / 2;
      const x1 = toColumn * (WIDTH + GAP), y1 = toRow * (HEIGHT + SPACE) + HEIGHT / 2;
      const bend = GAP / 2;
      svg.append(shape("path", { d: `M${x0} ${y0} C${x0 + bend} ${y0} ${x1 - bend} ${y1} ${x1 - 6} ${y1}` }),
        shape("path", { class: "tip", d: `M${x1 - 8} ${y1 - 5} L${x1} ${y1} L${x1 - 8} ${y1 + 5} Z` }));
      const label = shape("text", { x: x0 + GAP / 2, y: (y0 + (toColumn - fromColumn === 1 ? y1 : y0)) / 2 - 8 });
      const known = flows(input, node);
      setText(label, known === null ? "" : rate(known));
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
