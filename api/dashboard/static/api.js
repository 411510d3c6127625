// Calls the public API: the same routes that the command line and any other client use.

/** Advice that needs a terminal or another client. */
const OF_OTHER_CLIENTS = /\b(GET|POST|PUT|PATCH|DELETE) \/|\bHTTP\b|If-Match|\.\/keyscale|`/;

export const NO_ANSWER = "The control plane does not answer.";

/** The API refused, or did not answer. `message` can be shown to the user. */
export class ApiError extends Error {
  /** @param {{detail?: string, title?: string, advice?: string, code?: string}} problem @param {number} status */
  constructor(problem, status = 0) {
    super(problem.detail || problem.title || NO_ANSWER);
    this.code = problem.code ?? "";
    this.advice = problem.advice ?? "";
    this.status = status;
    /** Whether the time for an answer has passed. */
    this.isUnanswered = false;
    this.problem = problem;
  }

  /** The message with the advice that applies on a page. */
  get text() {
    const advice = this.advice.split(/(?<=[.!?])\s+/).filter((sentence) => !OF_OTHER_CLIENTS.test(sentence)).join(" ");
    const ends = !advice || /[.!?…]$/.test(this.message);
    return `${this.message}${ends ? "" : "."} ${advice}`.trim();
  }

  /** Whether the control plane itself does not answer, or cannot work now. */
  get isOutage() {
    return this.status === 0 || this.status >= 500;
  }
}

/** The session has ended; the browser goes to the sign-in page. */
export class Unauthorized extends ApiError {}

const TIMEOUT_MS = 10_000, UPLOAD_TIMEOUT_MS = 600_000;
/** A request for which the control plane may run a program, to read its declaration. */
const PROGRAM_TIMEOUT_MS = 300_000;

async function request(method, path, { json, form, headers = {}, timeoutMs = TIMEOUT_MS } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      // The session's cookie alone changes nothing: a form on another site can send cookies, but not this header.
      headers: {
        Accept: "application/json",
        "X-Requested-With": "keyscale",
        ...(json && { "Content-Type": "application/json" }),
        ...headers,
      },
      body: form ?? (json && JSON.stringify(json)),
      signal: AbortSignal.timeout(timeoutMs),
    });
  } catch (error) {
    const unanswered = new ApiError({ advice: method === "GET" ? "" : "The request may have been carried out." });
    unanswered.isUnanswered = error.name === "TimeoutError";
    throw unanswered;
  }
  if (response.status === 401) {
    location.assign(`/ui/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    throw new Unauthorized({ title: "Your session has ended." }, 401);
  }
  if (response.status === 204) return null;
  const answer = await response.json().catch(() => null);
  // An incomplete answer counts as a missing answer.
  if (!response.ok || answer === null) throw new ApiError(answer ?? {}, response.ok ? 0 : response.status);
  return answer;
}

export const get = (path) => request("GET", path);
export const post = (path, json = {}) => request("POST", path, { json });
/** Asks for the plan of a change of a job. @param {string} path of the job @param {object} change */
export const plan = async (path, change) =>
  (await request("PATCH", path, { json: { ...change, dry_run: true }, timeoutMs: PROGRAM_TIMEOUT_MS })).plan;
/** Changes a job, if it still has the revision. @param {string} path of the job @param {object} change @param {number} revision */
export const changeJob = (path, change, revision) =>
  request("PATCH", path, { json: change, headers: { "If-Match": `"${revision}"` }, timeoutMs: PROGRAM_TIMEOUT_MS });
/** Takes a job back to a revision. @param {string} path of the job @param {object} wanted */
export const rollBack = (path, wanted) =>
  request("POST", `${path}/rollback`, { json: wanted, timeoutMs: PROGRAM_TIMEOUT_MS });
export const remove = (path) => request("DELETE", path);

/** Uploads a file as an artifact. @param {File} file */
export function upload(file) {
  const form = new FormData();
  form.append("file", file);
  return request("POST", "/v1/artifacts", { form, timeoutMs: UPLOAD_TIMEOUT_MS });
}
