// Polls: never twice at once, not while the page is hidden, more slowly while the control plane does not answer.

import { Unauthorized } from "./api.js";
import { byId, setText } from "./dom.js";

const SLOWEST_MS = 10_000;

/**
 * Calls `refresh` now and then every `everyMs`; shows on the page when the control plane does not answer.
 * @param {() => Promise<void>} refresh
 * @param {number} everyMs
 * @returns {{now: () => void}} `now` refreshes at once, after an action of the user.
 */
export function poll(refresh, everyMs = 1000) {
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
      failures += 1;
      // One lost request is not worth a message.
      if (failures > 1) showConnection(`The figures below may be old: ${error.message} Trying again.`);
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

function showConnection(text) {
  const line = byId("connection");
  setText(line, text);
  line.hidden = !text;
}
