// A job's revisions: their history and differences, the plan of a change, upgrades, and the way back.

import { ApiError, changeJob, get, plan as planOf, rollBack, upload } from "../api.js";
import { ask, choice } from "../ask.js";
import { droppedBy, planParts } from "../change_plan.js";
import { changePill, showChoices, showChange } from "../change_timeline.js";
import { actionButton, byId, element, row, setChildren, setRefused, setText, tell, when } from "../dom.js";
import { showFieldProblems } from "../field_problems.js";
import { duration, NONE, number } from "../format.js";
import { jobPage, path } from "../job_page.js";
import { CHANGES, ENDED, isChanging } from "../job_status.js";
import { problemOfLines } from "../parameters.js";
import { pageQuery, showPages } from "../paging.js";
import { changeOf, fieldId, fieldText, readSettings, settingField, shownValue } from "../settings.js";

const PAGE = 20;
const OF_CHANGES = CHANGES.map((kind) => `kind=${kind}`).join("&");
const query = new URLSearchParams(location.search);
let job = null;
let revisions = [];
/** Uploaded programs by id, from the platform's list, the revisions, and what has been uploaded here. */
const programs = new Map();
/** The change of the shown plan. */
let planned = null;
let planning = false;
let sending = false;
/** The file that is being uploaded, of which the form's program is made once that is done. */
let uploading = null;
/** Counts what is done to the form, so that no plan of an earlier one is shown. */
let edition = 0;

const page = jobPage(
  () => Promise.all([
    get(`${path}/revisions?${pageQuery(PAGE)}`), get(`${path}/operations?${OF_CHANGES}&limit=1`), knowPrograms(), knowSettings(),
  ]),
  (shown, [listed, { operations: changes }], mayOperate) => {
    job = shown;
    revisions = listed.revisions;
    for (const one of revisions) know(one.spec.artifact_id, one.artifact_name, one.artifact_version);
    byId("open-edit").hidden = !mayOperate;
    if (mayOperate) fillForm();
    showEdit(mayOperate && query.has("edit"));
    setRefused(byId("apply-button"), sending ? "The request is being sent."
      : isChanging(job) ? "Another change of this job is in progress." : "");
    byId("change-panel").hidden = changes.length === 0;
    if (changes.length) showChange(changes[0]);
    showChoices(changes[0], mayOperate, page);
    showRevisions(mayOperate);
    showPages(listed.next);
    showDifferences();
  });

// --- programs ----------------------------------------------------------------------------------------------------------

let listed = null;
/** Reads the uploaded programs once. */
async function knowPrograms() {
  listed ??= await get("/v1/artifacts?limit=200");
  for (const one of listed.artifacts.toReversed()) {
    if (one.kind === "PYTHON" || one.kind === "ZIP") know(one.id, one.name, one.version);
  }
}

const know = (id, name, version) => programs.has(id) || programs.set(id, `${name}, version ${number(version)}`);

// --- the form ----------------------------------------------------------------------------------------------------------

/** The settings that the form changes, besides the program; the first ones are always shown. */
let settings = [];
const FIRST = ["parallelism", "parameters", "spark_conf"];
let filled = false;
/** What is wrong with the text of a field, by its id. */
const checks = {};
const forgetProblems = showFieldProblems(byId("edit"), checks);

/** Reads the settings once, and makes their fields. */
async function knowSettings() {
  if (settings.length) return;
  settings = (await readSettings()).filter((one) => one.change_class !== "FIXED" && one.path !== "artifact_id");
  for (const one of settings) if (one.type === "object") checks[fieldId(one)] = problemOfLines;
  const isFirst = ({ path: place }) => FIRST.includes(place);
  byId("first-settings").append(...settings.filter(isFirst).map(settingField));
  byId("more-settings").append(...settings.filter((one) => !isFirst(one)).map(settingField));
}

const textOf = (setting) => byId(fieldId(setting)).value;

/** Shows the options of the chosen restart strategy alone. */
function showOptions() {
  const type = textOf({ path: "restart.type" });
  for (const one of settings) {
    const isShown = !one.of_types.length || one.of_types.includes(type);
    document.querySelector(`[data-setting="${one.path}"]`).hidden = !isShown;
    if (isShown && one.of_types.length && !textOf(one)) byId(fieldId(one)).value = one.default ?? "";
  }
}

/** Shows the job's present specification, unless the user has begun to change it. */
function fillForm() {
  const { artifact_id: program } = job.spec;
  know(program, job.status.artifact_name, job.status.artifact_version);
  if (byId("program").children.length !== programs.size) {
    const chosen = byId("program").value;
    setChildren(byId("program"), ...[...programs].toReversed().map(([id, name]) =>
      element("option", { value: id }, id === program ? `${name} (as now)` : name)));
    if (chosen) byId("program").value = chosen;
  }
  byId("parallelism").max = job.spec.max_parallelism;
  if (filled) return;
  filled = true;
  byId("program").value = program;
  for (const one of settings) byId(fieldId(one)).value = fieldText(one, job.spec);
  showOptions();
  forgetProblems();
  if (programs.has(query.get("program"))) byId("program").value = query.get("program");
}

/** The change that the form asks for: only what differs from the job as it is. */
function changeOfForm() {
  const change = changeOf(settings, job.spec, textOf);
  if (byId("program").value !== job.spec.artifact_id) change.artifact_id = byId("program").value;
  return change;
}

byId("edit").addEventListener("submit", async (event) => {
  event.preventDefault();
  await refusable("edit-refusal", makePlan);
});
byId("edit").addEventListener("input", () => {
  edition += 1;
  showOptions();
  forgetPlan();
  setText(byId("edit-refusal"), "");
  const chosen = byId("program").value;
  setQuery("program", chosen === job?.spec.artifact_id ? "" : chosen);
});
byId("open-edit").addEventListener("click", () => {
  setQuery("edit", "yes");
  showEdit(true);
  byId("program").focus();
});
byId("close-edit").addEventListener("click", closeEdit);

function showEdit(isOpen) {
  byId("edit-panel").hidden = !isOpen;
  byId("open-edit").setAttribute("aria-expanded", String(isOpen));
}

/** Closes the form; when it is opened again, it shows the job as it then is. */
function closeEdit() {
  filled = false;
  uploading = null;
  edition += 1;
  showMakePlan();
  setQuery("program", "");
  setQuery("edit", "");
  forgetPlan();
  setText(byId("edit-refusal"), "");
  byId("why").value = "";
  showEdit(false);
  page.now();
}
byId("program-file").addEventListener("change", () => refusable("edit-refusal", async () => {
  const [file] = byId("program-file").files;
  if (!file) return;
  uploading = file;
  showMakePlan();
  let artifact;
  try {
    artifact = await upload(file);
    know(artifact.id, artifact.name, artifact.version);
    if (uploading !== file) return;
  } finally {
    if (uploading === file) uploading = null;
    showMakePlan();
  }
  edition += 1;
  fillForm();
  byId("program").value = artifact.id;
  setQuery("program", artifact.id === job.spec.artifact_id ? "" : artifact.id);
  byId("program-file").value = "";
}));

async function makePlan() {
  const change = changeOfForm();
  if (!Object.keys(change).length) throw new ApiError({ detail: "The change has no effect on the job." });
  const { revision } = job, begun = edition;
  planning = true;
  showMakePlan();
  let plan;
  try {
    plan = await planOf(path, { spec: change });
  } finally {
    planning = false;
    showMakePlan();
  }
  if (edition !== begun) return;
  planned = { change, revision, plan };
  showPlan();
}

function showMakePlan() {
  setText(byId("make-plan"), planning ? "Planning…" : "Show the plan");
  setText(byId("plan-hint"), planning ? "The program is loaded, which may take half a minute." : "");
  setRefused(byId("make-plan"), uploading ? "The file is being uploaded." : planning ? "The plan is being made." : "");
}

function showPlan() {
  const { plan } = planned;
  byId("plan").hidden = false;
  setChildren(byId("plan"), ...planParts(plan));
  byId("apply").hidden = !plan.compatible;
  byId("allow-line").hidden = !plan.requires_allow_non_restored_state;
  setText(byId("allow-text"), `Drop the state of ${droppedBy(plan).join(", ")}`);
  byId("modes").hidden = job.status.desired !== "RUNNING";
  setText(byId("apply-button"), job.status.desired === "RUNNING" ? "Upgrade…" : "Change…");
}

function forgetPlan() {
  planned = null;
  byId("plan").hidden = byId("apply").hidden = true;
}

byId("apply").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { plan, change, revision } = planned;
  const runs = job.status.desired === "RUNNING";
  const mode = new FormData(byId("apply")).get("mode");
  const dropped = plan.requires_allow_non_restored_state ? ` The state of ${droppedBy(plan).join(", ")} is dropped.` : "";
  const agreed = await ask({
    title: `${runs ? "Upgrade" : "Change"} ${job.name}?`,
    text: runs
      ? `The job pauses${plan.downtime.expected_ms === null ? " for a short time" : ` for about ${duration(plan.downtime.expected_ms)}`}. `
        + "If the new revision does not commit a batch, the job goes back to this revision automatically, with its current state."
        + `${mode === "STATELESS" ? " All operators begin without state." : ""}${dropped} You can also roll back later.`
      : `The job's next start runs the new revision.${dropped} You can roll back to revision ${job.revision}.`,
    action: runs ? "Upgrade the job" : "Change the job",
    danger: mode === "STATELESS" || Boolean(dropped),
  });
  if (!agreed) return;
  sending = true;
  setRefused(byId("apply-button"), "The request is being sent.");
  tell("The new revision is being checked.");
  await refusable("edit-refusal", async () => {
    const answer = await changeJob(path, {
      spec: change,
      ...(byId("why").value ? { message: byId("why").value } : {}),
      ...(runs ? { upgrade_mode: mode } : {}),
      allow_non_restored_state: !byId("allow-line").hidden && byId("allow").checked,
    }, revision);
    tell(answer.status === "PENDING_APPROVAL" ? `Revision ${answer.to_revision} waits for the approval of another user.`
      : answer.status === "IN_PROGRESS" ? `Revision ${answer.to_revision}: the change has begun.` : `Revision ${answer.to_revision} is created.`, "good");
    closeEdit();
  });
  sending = false;
  if (byId("edit-refusal").textContent) tell("");
  page.now();
});

async function refusable(id, act) {
  setText(byId(id), "");
  try {
    await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    setText(byId(id), error.text);
  }
}

// --- the history -------------------------------------------------------------------------------------------------------

function showRevisions(mayOperate) {
  setChildren(byId("revisions"), ...revisions.map((one) => row([
    element("span", { class: "nowrap" }, number(one.number), one.is_current ? element("span", { class: "tag calm" }, "now") : ""),
    when(one.created_at_ms),
    one.created_by ?? NONE,
    `${one.artifact_name}, version ${number(one.artifact_version)}`,
    [number(one.spec.parallelism), "number"],
    one.operation && !(one.is_current && hasFailed(one.operation)) ? changePill(one.operation) : NONE,
    one.message ?? "",
    element("span", { class: "actions" },
      element("a", { class: "button plain", href: `?after=${one.number}&before=${baseOf(one.number)}#difference`,
        "aria-label": `Specification of revision ${one.number}` }, "Show"),
      mayOperate && !one.is_current ? rollBackButton(one) : ""),
  ], { dataset: { key: one.number } })));
}

/** Whether a change was taken back. The job may have got its revision later all the same, while it did not run. */
const hasFailed = ({ status }) => ["CANCELLED", "ROLLED_BACK", "FAILED"].includes(status);

/** The revision that a job had before another one: not always the number before, which may never have run. */
function baseOf(number) {
  const base = revisions.find((one) => one.number === number)?.operation?.from_revision;
  return base && base !== number ? base : Math.max(1, number - 1);
}

function rollBackButton(one) {
  const button = actionButton(one.number < job.revision ? "Roll back…" : "Go to it…", () => askToRollBack(one),
    { class: "plain", "aria-label": `Go to revision ${one.number}…` });
  setRefused(button, isChanging(job) ? "Another change of this job is in progress." : "");
  return button;
}

async function askToRollBack(one) {
  const runs = job.status.desired === "RUNNING";
  const given = await ask({
    title: `Roll ${job.name} back to revision ${one.number}?`,
    text: `The job continues with ${one.artifact_name}, version ${one.artifact_version}, at parallelism ${one.spec.parallelism}. `
      + (!runs ? "This can be undone: roll forward again."
        : job.status.failure ? "The job fails, so it cannot take a savepoint: it goes back from its latest checkpoint and its log. If "
          + `revision ${one.number} also fails, the current revision continues from the same point.`
          : "The job first takes a savepoint of its current state, so this can be undone."),
    action: `Roll back to revision ${one.number}`,
    fields: [choice("state", "State", [
      ["SAVEPOINT", "State when the revision was replaced", "Later records are processed again, by the old program."],
      ["CURRENT", "Current state", "No record is processed again. The old program must be able to read the state."],
    ])],
  });
  if (!given) return;
  try {
    const answer = await rollBack(path, { revision: one.number, state: given.get("state") });
    tell(answer.status === "PENDING_APPROVAL" ? `Roll back to revision ${one.number}: it waits for the approval of another user.`
      : answer.status === "IN_PROGRESS" ? `Roll back to revision ${one.number}: it has begun.`
      : `The job is back at revision ${one.number}.${ENDED.has(job.status.state) ? " Start it to run it." : ""}`, "good");
    filled = false;
    forgetPlan();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell(`Roll back: ${error.text}`, "bad");
  }
  page.now();
}

// --- one revision, and what differs in another -----------------------------------------------------------------------

/** The specification that is shown below, by the numbers of both revisions. */
let compared = { key: null };

byId("compare").addEventListener("input", () => {
  setQuery("before", byId("before").value);
  setQuery("after", byId("after").value);
  setQuery("only", byId("only").checked ? "yes" : "");
  showDifferences();
});
byId("compare").addEventListener("submit", (event) => event.preventDefault());

async function showDifferences() {
  const after = Number(query.get("after")) || job.revision;
  const before = Number(query.get("before")) || baseOf(after);
  for (const [id, chosen] of [["before", before], ["after", after]]) {
    const choices = [...new Set([...revisions.map((one) => one.number), before, after])].toSorted((one, other) => other - one);
    setChildren(byId(id), ...choices.map((each) => element("option", { value: each }, each)));
    if (document.activeElement !== byId(id)) byId(id).value = chosen;
  }
  byId("only").checked = query.has("only");
  const key = `${before} ${after}`;
  if (compared.key !== key) {
    compared = { key };
    try {
      const [whole, { differences }] = await Promise.all([
        get(`${path}/revisions/${after}`), get(`${path}/revisions/${before}/diff?to=${after}`)]);
      if (compared.key !== key) return;
      Object.assign(compared, { whole, differences });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.isOutage) compared = { key: null };
      else compared.refusal = error.text;
    }
  }
  drawDifferences(before, after);
}

function drawDifferences(before, after) {
  const { whole, differences = [], refusal } = compared;
  if (!whole && !refusal) return;
  const changed = new Map(differences.map((one) => [one.path, one]));
  const others = whole && !query.has("only") ? fieldsOf(whole).filter(([name]) => !changed.has(name)) : [];
  setText(byId("before-head"), `Revision ${before}`);
  setText(byId("after-head"), `Revision ${after}`);
  byId("before-head").hidden = before === after;
  const isEmpty = changed.size + others.length === 0;
  byId("difference-scroll").hidden = isEmpty;
  byId("no-difference").hidden = !isEmpty;
  setText(byId("no-difference"), refusal ?? "These two revisions do not differ.");
  const label = (name) => breakable(name === "artifact_id" ? "program" : name);
  setChildren(byId("differences"),
    ...[...changed.values()].map((one) => row([[label(one.path), "mono"],
      [valueOf(one.path, one.before), "mono removed"], [valueOf(one.path, one.after), "mono added"]])),
    ...others.map(([name, value]) => row([[label(name), "mono"],
      ...(before === after ? [] : [[valueOf(name, value), "mono soft"]]), [valueOf(name, value), "mono"]])));
}

/** A name that may go on in another line after its dots and underscores. */
const breakable = (name) => element("span", {}, ...name.split(/(?<=[._])/).flatMap((part) => [part, element("wbr")]));

/** The settings of a revision under the names that the differences have. */
function fieldsOf(one) {
  return Object.entries(one.spec).flatMap(([name, value]) => (value === null || Array.isArray(value) || typeof value !== "object"
    ? [[name, value]] : Object.entries(value).map(([key, each]) => [`${name}.${key}`, each])));
}

const valueOf = (place, value) => (place === "artifact_id" && programs.get(value)) || shownValue(place, value);

function setQuery(name, value) {
  if (value) query.set(name, value);
  else query.delete(name);
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text && `?${text}`));
}
