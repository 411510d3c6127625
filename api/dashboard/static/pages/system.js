// The platform itself: its parts, the viewer, tokens for administrators, and the events of everything.

import { allJobs } from "../all_jobs.js";
import { ApiError, get, post, remove } from "../api.js";
import { ask } from "../ask.js";
import { actionButton, byId, definitions, element, row, setChildren, setText, since, when, words } from "../dom.js";
import { showFieldProblems } from "../field_problems.js";
import { NONE, number } from "../format.js";
import { filterQuery, showFilter } from "../event_filter.js";
import { showEvents } from "../event_list.js";
import { live } from "../live.js";
import { pageQuery, showPages } from "../paging.js";
import { mayActAs, viewer } from "../viewer.js";
import { showSubscriptions, watchSubscriptionForm } from "../subscriptions.js";

const DAY_MS = 86_400_000;
/** The packages of every job; they do not change while the control plane runs. */
let platform = null;

const page = live(async () => {
  const user = await viewer();
  const isAdmin = mayActAs(user, "ADMIN");
  platform ??= await get("/v1/artifacts/platform");
  const isOperator = mayActAs(user, "OPERATOR");
  const [health, known, happened, named, tokens, subscribed] = await Promise.all([
    get("/health").catch(unhealthy), get("/v1/replicas"), get(`/v1/events?${pageQuery(100)}${filterQuery()}`), get("/v1/secrets"),
    isAdmin ? get("/v1/tokens") : null, isOperator ? get("/v1/subscriptions") : null,
  ]);
  byId("loading").hidden = true;
  showParts(health);
  showReplicas(known.replicas);
  setChildren(byId("you"), ...definitions([
    ["Name", user.name], ["Role", words(user.role)], ["Reaches", reach(user.scope)],
    ["Session ends", user.expires_at_ms ? when(user.expires_at_ms) : "never"],
  ]));
  byId("tokens-panel").hidden = !isAdmin;
  showSecrets(named.secrets);
  if (tokens) showTokens(tokens.tokens);
  byId("subscriptions-panel").hidden = !isOperator;
  if (subscribed) showSubscriptions(subscribed.subscriptions, page);
  await knowJobs(happened.events);
  byId("no-events").hidden = happened.events.length > 0;
  byId("refusals-hint").hidden = !isAdmin;
  showEvents(happened.events, jobNames);
  showPages(happened.next);
}, { everyMs: 5000 });

/** The names of the jobs of the events, by id; null for a deleted job. @type {Map<string, string | null>} */
const jobNames = new Map();

async function knowJobs(events) {
  const unknown = events.map((event) => event.job_id).filter((id) => id !== null && !jobNames.has(id));
  if (!unknown.length) return;
  const jobs = await allJobs();
  for (const id of unknown) jobNames.set(id, null);
  for (const job of jobs) jobNames.set(job.id, job.name);
}

/** A part that does not work is shown, too: the refusal names the state of each part. */
function unhealthy(error) {
  if (!(error instanceof ApiError) || !error.problem.version) throw error;
  return { ...error.problem, status: error.code };
}

function showParts(health) {
  const badge = byId("health");
  badge.hidden = false;
  badge.dataset.tone = health.status === "ok" ? "good" : "bad";
  setText(badge, health.status === "ok" ? "All parts work" : words(health.status));
  setChildren(byId("parts"), ...definitions([
    ["Version", health.version],
    ["Spark", platform.packages.pyspark ?? NONE, `Python ${platform.python_version}`],
    ["Database", stateOf(health.database)],
    ["Object store", stateOf(health.store)],
    ["Reconciler", stateOf(health.reconciler), "brings each job to its desired state"],
    ["Leader", health.leader?.url ?? NONE, health.leader && `in epoch ${number(health.leader.epoch)}`],
    ["This replica", health.role ? words(health.role) : NONE],
    ["Users of jobs", health.isolation === "ok" ? "One per job" : health.isolation],
    ["Quotas of jobs", Object.entries(health.quotas ?? {}).map(([name, limit]) => `${words(name)}: ${limit}`).join("; ") || NONE],
  ]));
}

const stateOf = (state) => (state === "ok" ? "Works" : words(state));

function showReplicas(replicas) {
  setChildren(byId("replicas"), ...replicas.map((one) => row([
    [one.url, "mono"], !one.is_alive ? "Silent" : one.leads_since_ms ? "Leads" : "Stands by", when(one.leads_since_ms), since(one.seen_at_ms),
  ])));
}

function reach(scope) {
  if (!scope) return "every job";
  const labels = Object.entries(scope.labels).map(([name, value]) => `${name}: ${value}`);
  return [...scope.jobs, ...labels].join(", ") || "every job";
}

function showSecrets(secrets) {
  byId("no-secrets").hidden = secrets.length > 0;
  byId("secrets-table").hidden = secrets.length === 0;
  setChildren(byId("secrets"), ...secrets.map((one) => row([
    [one.name, "mono"], Object.entries(one.labels).map(([name, value]) => `${name}: ${value}`).join(", ") || NONE, one.is_set ? "Yes" : "No",
  ])));
}

function showTokens(tokens) {
  setChildren(byId("tokens"), ...tokens.map((token) => row([
    token.name, words(token.role), reach(token.scope), token.created_by, when(token.created_at_ms),
    token.revoked_at_ms ? element("span", {}, "revoked ", when(token.revoked_at_ms))
      : token.expires_at_ms ? when(token.expires_at_ms) : "never",
    token.revoked_at_ms ? "" : actionButton("Revoke…", () => revoke(token), { class: "plain danger" }),
  ], { dataset: { key: token.id } })));
}

async function revoke(token) {
  const agreed = await ask({
    title: `Revoke ${token.name}?`,
    text: "Programs that use it are refused from now on, and browsers that signed in with it are signed out. "
      + "This cannot be undone.",
    action: "Revoke the token",
  });
  if (agreed) await attempt(() => remove(`/v1/tokens/${token.id}`));
}

watchSubscriptionForm(page);
showFilter();
showFieldProblems(byId("token-form"));
byId("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  await attempt(async () => {
    const made = await post("/v1/tokens", {
      name: byId("token-name").value,
      role: byId("token-role").value,
      lifetime_ms: byId("token-days").valueAsNumber * DAY_MS,
    });
    const box = byId("token-made");
    box.hidden = false;
    setChildren(box, `The token ${made.name} is shown this once: `, element("code", {}, made.token));
  });
});

async function attempt(act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const box = byId("token-made");
    box.hidden = false;
    setChildren(box, error.text);
  }
  page.now();
}
