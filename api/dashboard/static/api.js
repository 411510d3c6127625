// Calls the public API: the same routes that the command line and any other client use.

/** The API refused, or did not answer. `message` can be shown to the user. */
export class ApiError extends Error {
  /** @param {{detail?: string, title?: string, advice?: string, code?: string}} problem */
  constructor(problem) {
    super(problem.detail || problem.title || "The control plane does not answer.");
    this.code = problem.code ?? "";
    this.advice = problem.advice ?? "";
  }
}

/** The session has ended; the browser goes to the sign-in page. */
export class Unauthorized extends ApiError {}

async function request(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      // The session's cookie alone changes nothing: a form on another site can send cookies, but not this header.
      headers: {
        Accept: "application/json",
        "X-Requested-With": "keyscale",
        ...(body && { "Content-Type": "application/json" }),
      },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(15_000),
    });
  } catch {
    throw new ApiError({});
  }
  if (response.status === 401) {
    location.assign(`/ui/login?next=${encodeURIComponent(location.pathname)}`);
    throw new Unauthorized({ title: "Your session has ended." });
  }
  const answer = response.status === 204 ? null : await response.json().catch(() => ({}));
  if (!response.ok) throw new ApiError(answer ?? {});
  return answer;
}

export const get = (path) => request("GET", path);
export const post = (path, body = {}) => request("POST", path, body);
