// Keeps a page up to date: never twice at once, not while it is hidden, more slowly while the control plane is away.

import { ApiError, Unauthorized } from "./api.js";
import { byId, setAway, setText } from "./dom.js";

const SLOWEST_MS = 10_000;

/**
 * Calls `refresh` now and then every `everyMs`; shows on the page when the control plane does not answer.
 * @param {() => Promise<void>} refresh
 * @param {number} everyMs
 * @returns {{now: () => void}} `now` refreshes at once, after an action of the user.
 */
export function live(refresh, everyMs = 1000) {
  let failures = 0;
  let timer = 0;
  let busy = false;
  let again = false;

  async function run() {
    clearTimeout(timer);
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await refresh();
      failures = 0;
      showConnection("");
    } catch (error) {
      if (error instanceof Unauthorized) return;
      if (!(error instanceof ApiError)) throw error;
      failures += 1;
      // One lost request is not worth a message.
      if (failures > 1) showConnection(`${error.message} What you see may be old. Trying again…`, error.isOutage);
    } finally {
      busy = false;
    }
    if (again) {
      again = false;
      run();
    } else if (!document.hidden) {
      timer = setTimeout(run, Math.min(everyMs * 2 ** failures, SLOWEST_MS));
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : run()));
  run();
  return { now: run };
}

function showConnection(text, isAway = false) {
  const line = byId("connection");
  setText(line, text);
  line.hidden = !text;
  setAway(isAway);
}
