// A job's overview: its current metrics, its operators, and its metrics over time.

import { get } from "../api.js";
import { AutoscalerCard } from "../autoscaler_card.js";
import { drawBatches } from "../batch_bars.js";
import { arrangeCharts, drawChart } from "../charts.js";
import { byId, definitions, element, setChildren, setText, since, words } from "../dom.js";
import { bytes, duration, NONE, number, percent, plural, rate, time } from "../format.js";
import { drawGraph } from "../job_graph.js";
import { jobPage, path, tabPath } from "../job_page.js";
import { isLagOld } from "../job_status.js";

const MINUTE_MS = 60_000, HOUR_MS = 60 * MINUTE_MS, DAY_MS = 24 * HOUR_MS;
const SPANS = { "15m": ["15 min", 15 * MINUTE_MS], "1h": ["1 h", HOUR_MS], "6h": ["6 h", 6 * HOUR_MS],
  "1d": ["1 day", DAY_MS], "7d": ["7 days", 7 * DAY_MS], "30d": ["30 days", 30 * DAY_MS] };
/** How often the series are read again, and the shortest step between two points. */
const SERIES_EVERY_MS = 5000, SHORTEST_STEP_MS = 10_000, ANNOTATIONS_LISTED = 8;
const TONES = { FAILURE: "bad", CHECKPOINT_FAILED: "bad", RESTART: "busy", ROLLBACK: "busy" };
const query = new URLSearchParams(location.search);
let span = SPANS[query.get("span")] ? query.get("span") : "15m";
/** The counters that a job has beside the records read and emitted. @type {{name: string, label: string}[]} */
const COUNTERS = JSON.parse(byId("charts").dataset.counters);
let series = null;
let readAtMs = 0;
const autoscaler = new AutoscalerCard(path);

const page = jobPage(() => readSeries(), (job) => {
  showFigures(job);
  autoscaler.show(job);
  const operators = job.status.attempt?.metrics?.operators ?? [];
  const isDrawn = drawGraph(byId("graph"), job);
  byId("no-operators").hidden = isDrawn;
  for (const id of ["no-operators", "no-subtasks"]) {
    setText(byId(id), job.metrics.input_records ? "No batch since the driver started." : "No batch yet.");
  }
  byId("graph-scroll").hidden = !isDrawn;
  showBatches(job.status.attempt?.metrics?.recent_batches ?? []);
  showSubtasks(operators);
  showCharts(job);
}, ["metrics", "checkpoints"]);

// --- current metrics ------------------------------------------------------------------------------------------------

/** Says where records wait, and when they were counted, if that is some time ago. */
const waitingSince = (job) => isLagOld(job) ? `as of ${time(job.metrics.lag_records_at_ms)}`
  : "in the sources, and in no committed batch";

function showFigures(job) {
  const figures = job.metrics;
  const { latest_checkpoint: checkpoint, running_since_ms: sinceMs } = job.status;
  const up = sinceMs !== null;
  setChildren(byId("figures"), ...definitions([
    ["Input", rate(figures.input_rate), up ? `could process ${rate(figures.processed_rate)}` : "not running now"],
    ["Records waiting", number(figures.lag_records), figures.lag_records !== null ? waitingSince(job)
      : figures.input_rate !== null ? "a source cannot count them, as sources of files cannot" : ""],
    ["Lag", duration(figures.lag_ms), "from an event to its result"],
    ["Last checkpoint", since(checkpoint?.completed_at_ms), checkpoint ? element("span", {},
      element("a", { href: tabPath(`checkpoints/${checkpoint.id}`) }, `#${checkpoint.id}`),
      ` took ${duration(checkpoint.end_to_end_duration)}, wrote ${bytes(checkpoint.checkpointed_size)}`) : "none yet"],
  ]));
  setChildren(byId("more-figures"), ...definitions([
    ["Running for", up ? duration(Math.max(0, Math.floor((Date.now() - sinceMs) / 1000) * 1000)) : NONE,
      `since its last start or change; ${job.status.restarts ? plural(job.status.restarts, "restart") : "no restart"}`],
    ["Parallelism", number(job.spec.parallelism), element("a", { href: tabPath("rescale") }, `up to ${number(job.spec.max_parallelism)}`)],
    ["State", bytes(figures.state_size), "as last saved"],
    ["Busy", percent(figures.busy_ratio), figures.batch_duration_ms === null ? "" : `${duration(figures.batch_duration_ms)} per batch`],
    ["Records read", number(figures.input_records), "since the job was created"],
    ["Emitted", number(figures.output_records), "side outputs and dead letters too"],
    ...COUNTERS.map(({ name, label }) => [label, number(figures[name])]),
  ]));
}

// --- over time -------------------------------------------------------------------------------------------------------

byId("spans").append(...Object.entries(SPANS).map(([name, [label]]) =>
  element("button", { type: "button", dataset: { name }, onclick: () => choose(name) }, label)));
showSpans();

function choose(name) {
  span = name;
  readAtMs = 0;
  history.replaceState(null, "", `${location.pathname}?span=${name}`);
  showSpans();
  page.now();
}

function showSpans() {
  for (const button of byId("spans").children) button.setAttribute("aria-pressed", button.dataset.name === span);
}

async function readSeries() {
  if (Date.now() - readAtMs < SERIES_EVERY_MS) return;
  const toMs = Date.now();
  series = await get(`${path}/series?from_ms=${toMs - SPANS[span][1]}&to_ms=${toMs}`);
  readAtMs = toMs;
}

/** Current values that the page already shows: a chart shows the same. */
const nowOf = ({ metrics, status: { latest_checkpoint: checkpoint } }) =>
  ({ ...metrics, watermark_ms: null, checkpoint_duration_ms: checkpoint?.end_to_end_duration });
/**
 * The charts, as the platform declares its metrics. A line that is held has values that hold until the next value; the
 * last value of a lasting line stays true of a job that does not run.
 * @type {{title: string, kind: string, lines: {name: string, label: string, held: boolean, lasting: boolean}[]}[]}
 */
const CHARTS = JSON.parse(byId("charts").dataset.charts);

/** How the metrics of functions are drawn, by their kind, and what follows their name in a title. */
const USER_KINDS = { COUNTER: ["rate", " per second"], GAUGE: ["decimal", ""], HISTOGRAM: ["decimal", ", mean"] };
const USER_LINES_MAX = 4;

/** The charts of the metrics that the job's functions declare: one per metric, with the first of its series. */
function userCharts(times, user) {
  const charts = new Map();
  for (const { operator, name, kind, labels, values } of user) {
    if (values.every((value) => value === null)) continue;
    const title = `${operator}: ${name}${USER_KINDS[kind][1]}`;
    const chart = charts.get(title) ?? { title, kind: USER_KINDS[kind][0], lines: [] };
    charts.set(title, chart);
    if (chart.lines.length === USER_LINES_MAX) continue;
    const label = Object.values(labels).join(", ") || name;
    chart.lines.push({ name: label, points: times.map((at, index) => [at, values[index]]) });
  }
  return [...charts.values()];
}

function showCharts(job) {
  const { at_ms: times, series: known, annotations, step_ms: stepMs, to_ms: toMs } = series;
  const isNow = job.metrics.input_rate !== null;
  const now = nowOf(job);
  const isKnown = (values, index) => (values?.[index] ?? null) !== null;
  // A single late report of a driver does not make a gap.
  const isLate = (values, index) =>
    stepMs === SHORTEST_STEP_MS && !isKnown(values, index) && isKnown(values, index - 1) && isKnown(values, index + 1);
  const pointsOf = (name) => times.flatMap((at, index) => {
    if (isLate(known[name], index)) return [];
    const value = known[name]?.[index] ?? null;
    // The watermark is from the step's end; the newest step may not be over.
    return [[at, name === "watermark_ms" && value !== null ? Math.max(0, Math.min(at + stepMs, toMs) - value) : value]];
  });
  const drawable = CHARTS.filter(({ lines }) => lines.some(({ name }) => known[name]?.some((value) => value !== null)));
  const ofFunctions = userCharts(times, series.user);
  const isEmpty = drawable.length + ofFunctions.length === 0;
  byId("no-series").hidden = !isEmpty;
  byId("charts").hidden = isEmpty;
  const shown = annotations.map((annotation) => ({ ...annotation, tone: TONES[annotation.kind] ?? "second" }));
  arrangeCharts([...drawable, ...ofFunctions].map(({ title }) => title));
  for (const { title, kind, lines } of drawable) {
    drawChart(title, {
      kind,
      lines: lines.map(({ name, label, held, lasting }) =>
        ({ name: label, points: pointsOf(name), now: now[name], joined: held, over: !isNow && !lasting })),
      span: [series.from_ms, series.to_ms],
      annotations: shown,
    });
  }
  for (const { title, kind, lines } of ofFunctions) {
    const drawn = lines.map((line) => ({ ...line, over: !isNow }));
    drawChart(title, { kind, lines: drawn, span: [series.from_ms, series.to_ms], annotations: shown });
  }
  showAnnotations(shown);
}

function showAnnotations(annotations) {
  const list = byId("annotations");
  list.hidden = annotations.length === 0;
  setChildren(list, ...annotations.toReversed().slice(0, ANNOTATIONS_LISTED).map((annotation) =>
    element("li", { "data-tone": annotation.tone }, since(annotation.at_ms), " ", ...textOf(annotation))));
}

/** An annotation's text may begin with its kind. */
function textOf({ kind, text }) {
  const name = words(kind);
  const rest = text.toLowerCase().startsWith(`${name.toLowerCase()} `) ? text.slice(name.length) : ` ${text}`;
  return [element("strong", {}, name), rest];
}

// --- recent batches --------------------------------------------------------------------------------------------------

/** The parts of a batch's time. @type {{name: string, label: string}[]} */
const PARTS = JSON.parse(byId("batch-parts").dataset.parts);

function showBatches(batches) {
  byId("batches-panel").hidden = batches.length === 0;
  drawBatches(byId("batches"), byId("batch-parts"), PARTS, batches);
}

// --- operators and subtasks ------------------------------------------------------------------------------------------

const largestKeyGroup = ({ largest_key_group: group, largest_key_group_records: records, read_records: all }) =>
  group == null || !all ? NONE : `${number(records)} (${percent(records / all)})`;

// One row per subtask; the operator's name is in the row of its first one.
function showSubtasks(operators) {
  byId("no-subtasks").hidden = operators.length > 0;
  byId("operators-table").hidden = operators.length === 0;
  const number_ = (text) => element("td", { class: "number" }, text);
  setChildren(byId("operators"), ...operators.flatMap((operator) => operator.subtasks.map((subtask) =>
    element("tr", {},
      subtask.index === 0
        ? element("th", { scope: "rowgroup", rowspan: operator.subtasks.length, class: "mono" }, operator.uid) : null,
      ...[number(subtask.index), number(subtask.read_records), number(subtask.write_records), largestKeyGroup(subtask),
        percent(subtask.busy_ratio), duration(subtask.processor_ms), duration(subtask.input_ms),
        duration(subtask.output_ms), duration(subtask.store_ms), bytes(subtask.state_bytes)].map(number_)))));
}
