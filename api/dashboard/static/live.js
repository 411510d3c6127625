// Keeps a page up to date: by the platform's stream of changes, or by polling without a stream.
// One refresh at a time, not while the page is hidden, more slowly while the control plane does not answer.

import { ApiError, NO_ANSWER, Unauthorized } from "./api.js";
import { byId, setAway, setText, tell } from "./dom.js";

/** A lost stream is opened again after a while; with one, the page still asks now and then, to be sure. */
const SLOWEST_MS = 10_000, REOPEN_MS = 10_000, SURE_MS = 15_000, REDRAW_MS = 1000, RETRY_MS = 1000;
/** How long a page waits for the stream's first message, which comes at once and starts the first refresh. */
const FIRST_MS = 300;

/**
 * Calls `refresh` now and whenever something has changed; shows on the page when the control plane does not answer.
 * @param {() => Promise<void>} refresh
 * @param {{everyMs?: number, stream?: string|null, topics?: string[], redraw?: () => void}} options `everyMs` is the
 *   time between two refreshes without a stream; `topics` of the stream's messages concern the page; `redraw` is called
 *   every second, for what only time changes.
 * @returns {{now: () => void}} `now` refreshes at once, after an action of the user.
 */
export function live(refresh, { everyMs = 1000, stream = null, topics = [], redraw = null } = {}) {
  let failures = 0, timer = 0, clock = 0, reopening = 0;
  let busy = false, again = false, known = false;
  /** @type {EventSource|null} */
  let source = null;
  let isStreaming = false;

  async function run() {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await refresh();
      if (failures) forgetNoAnswer();
      failures = 0;
      known = true;
      showConnection("");
    } catch (error) {
      if (error instanceof Unauthorized) return;
      if (!(error instanceof ApiError)) throw error;
      failures += 1;
      // A single lost request needs no message; a request that has timed out does.
      if (failures > 1 || error.isUnanswered) showConnection(`${error.message} What you see may be old. Trying again…`, error.isOutage);
    } finally {
      busy = false;
    }
    if (again) {
      again = false;
      run();
    } else if (!document.hidden) {
      const pauseMs = failures ? Math.min(RETRY_MS * 2 ** failures, SLOWEST_MS) : isStreaming ? SURE_MS : everyMs;
      timer = setTimeout(run, pauseMs);
    }
  }

  function open() {
    clearTimeout(reopening);
    if (!stream || source) return;
    source = new EventSource(stream);
    source.addEventListener("change", ({ data }) => {
      isStreaming = true;
      if (topics.some((topic) => JSON.parse(data).topics.includes(topic))) run();
    });
    source.addEventListener("gone", () => {
      close();
      run();
    });
    source.addEventListener("over", () => location.assign(`/ui/login?next=${encodeURIComponent(location.pathname + location.search)}`));
    source.addEventListener("away", () => showConnection(`${NO_ANSWER} What you see may be old. Trying again…`, true));
    source.addEventListener("error", () => {
      const wasStreaming = isStreaming;
      isStreaming = false;
      // The browser connects again by itself, unless it was refused.
      if (source?.readyState === EventSource.CLOSED) {
        close();
        reopening = setTimeout(open, REOPEN_MS);
      }
      if (wasStreaming) run();
    });
  }

  function close() {
    source?.close();
    source = null;
    isStreaming = false;
  }

  function show() {
    clearTimeout(timer);
    clearInterval(clock);
    clearTimeout(reopening);
    if (document.hidden) {
      close();
      return;
    }
    open();
    if (source) timer = setTimeout(run, FIRST_MS);
    else run();
    if (redraw) clock = setInterval(() => known && redraw(), REDRAW_MS);
  }

  document.addEventListener("visibilitychange", show);
  // A browser has few connections per host, and may keep a page that was left. A page that comes back follows again.
  addEventListener("pagehide", close);
  addEventListener("pageshow", ({ persisted }) => persisted && show());
  show();
  return { now: run };
}

/** Removes the message that a request got no answer: the page now shows its result. */
function forgetNoAnswer() {
  if (byId("message")?.textContent.includes(NO_ANSWER)) tell("");
}

function showConnection(text, isAway = false) {
  const line = byId("connection");
  setText(line, text);
  line.hidden = !text;
  setAway(isAway);
}
