// Subscriptions to notifications: their table, a test of each, and the form for a new one.

import { ApiError, get, post, remove } from "./api.js";
import { ask } from "./ask.js";
import { actionButton, byId, element, row, setChildren, words } from "./dom.js";
import { showFieldProblems } from "./field_problems.js";
import { number } from "./format.js";

const TEST_MS = 30_000;
const POLL_MS = 500;

/** Shows the user's subscriptions; the page is asked for news after each action. */
export function showSubscriptions(subscriptions, page) {
  byId("no-subscriptions").hidden = subscriptions.length > 0;
  byId("subscriptions-table").hidden = subscriptions.length === 0;
  setChildren(byId("subscriptions"), ...subscriptions.map((one) => row([
    words(one.channel), [one.target, "mono"], reach(one.selector), one.kinds.map(words).join(", "), one.created_by,
    number(one.pending_count), number(one.failed_count),
    element("span", { class: "actions" },
      actionButton("Test", () => attempt(page, () => test(one)), { class: "plain" }),
      actionButton("Delete…", () => attempt(page, () => unsubscribe(one)), { class: "plain danger" })),
  ], { dataset: { key: one.id } })));
}

/** Makes the form create a subscription, and shows the secret of a webhook once. */
export function watchSubscriptionForm(page) {
  showFieldProblems(byId("subscription-form"));
  byId("subscription-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await attempt(page, async () => {
      const job = byId("subscription-job").value.trim();
      const made = await post("/v1/subscriptions", {
        channel: byId("subscription-channel").value,
        target: byId("subscription-target").value.trim(),
        ...(job ? { selector: { jobs: [job] } } : {}),
      });
      byId("subscription-target").value = "";
      if (made.secret) tell("good", "The secret of the webhook is shown this once: ", element("code", {}, made.secret));
      else tell("good", "The subscription is created.");
    });
  });
}

async function test(subscription) {
  const path = `/v1/subscriptions/${subscription.id}`;
  const sent = await post(`${path}/test`, {});
  tell("good", "The test message is being sent.");
  for (const untilMs = Date.now() + TEST_MS; Date.now() < untilMs;) {
    await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    const { deliveries } = await get(`${path}/deliveries`);
    const found = deliveries.find((one) => one.id === sent.id);
    if (found?.status === "DELIVERED") return tell("good", "The test message was delivered.");
    if (found?.problem) return tell("bad", `The test message was not delivered: ${found.problem}.`);
  }
  return tell("bad", "The test message was not sent within 30 seconds.");
}

async function unsubscribe(subscription) {
  const agreed = await ask({
    title: "Delete the subscription?",
    text: `${subscription.target} gets no more messages, and messages that wait are dropped. This cannot be undone.`,
    action: "Delete the subscription",
  });
  if (agreed) await remove(`/v1/subscriptions/${subscription.id}`);
}

async function attempt(page, act) {
  try {
    await act();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    tell("bad", error.text);
  }
  page.now();
}

function tell(tone, ...text) {
  const box = byId("subscription-made");
  box.hidden = false;
  box.dataset.tone = tone;
  setChildren(box, ...text);
}

function reach(selector) {
  if (!selector) return "every job";
  return [...selector.jobs, ...Object.entries(selector.labels).map(([name, value]) => `${name}: ${value}`)].join(", ");
}
