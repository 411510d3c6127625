"""Serves the pages under /ui and the sign-in of browsers.

The pages hold no data: their modules read data from the public API, which checks the cookie. So a page needs no
database, and an open page survives an outage of the database.
"""

from __future__ import annotations

import gzip
import hmac
import json
import math
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, unquote

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from keyscale.db.repositories import events
from keyscale.metrics import BATCH_PARTS, COUNTER, JOB_COUNTERS, OBSERVED, charts
from keyscale.vocabulary import CHANGES

from ..access import browser_sessions
from ..access.browser_sessions import SESSION_COOKIE, require_own_origin
from ..access.openid import SignIn
from ..access.principal import authenticate_token
from ..access.refusals import note_refusal
from ..access.tokens import new_token
from ..control_plane.dependencies import ContextOf  # noqa: TC001 - FastAPI reads the annotation when it starts
from ..errors import (
    RateLimitedError,
    RoleMissingError,
    TokenExpiredError,
    TokenMissingError,
    TokenRevokedError,
)
from .page_modules import STATIC, imported_modules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..access.principal import Principal
    from ..control_plane.context import Context
    from ..errors import ApiError

HERE = Path(__file__).parent
START_PAGE = "/ui/"
SIGN_IN_COOKIE = "keyscale_sign_in"
SIGN_IN_SECONDS = 600
ISSUER_REFUSAL = "The issuer could not sign you in. Try again; the control plane's events hold the reason."

# Only the control plane's own files and API; no inline script or style; no frame around the page.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
TABS = {
    "overview": "Overview",
    "checkpoints": "Checkpoints",
    "rescale": "Rescale",
    "revisions": "Revisions",
    "key-groups": "Key groups",
    "exceptions": "Exceptions",
    "logs": "Logs",
    "configuration": "Configuration",
    "events": "Events",
}
"""The tabs of a job: the last part of the address, and the words on the tab."""

_OWN_ADDRESS = re.compile(r"/ui/[A-Za-z0-9._~%/-]*(\?[A-Za-z0-9._~%/?&=+!*'(),:@$;-]*)?")

_pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined)
_pages.globals["changes"] = " ".join(CHANGES)
_files = StaticFiles(directory=STATIC)
_LIBRARY_FILE = Path(str(files("plotly"))) / "package_data" / "plotly.min.js"
CHART_LIBRARY = f"plotly-{sha256(_LIBRARY_FILE.read_bytes()).hexdigest()[:16]}.js"
"""The name under which the chart library is served; the library is a third-party file."""

CHARTS = json.dumps(
    [
        {
            "title": chart.title,
            "kind": chart.kind,
            "lines": [
                {
                    "name": metric.name,
                    "label": metric.label,
                    "held": metric.is_held,
                    "lasting": metric.scope is OBSERVED or metric.kind is COUNTER,
                }
                for metric in chart.lines
            ],
        }
        for chart in charts()
    ]
)
"""The charts of a job, for the page that draws them."""
COUNTERS = json.dumps([{"name": metric.name, "label": metric.label} for metric in JOB_COUNTERS if metric.label])
"""The counters that the page shows of a job, and of the operators and sinks that have them."""
PARTS = json.dumps([{"name": part.name, "label": part.label} for part in BATCH_PARTS])
"""The parts of a batch's time, for the page that draws them."""

router = APIRouter(prefix="/ui", include_in_schema=False)


@router.get("/")
def show_jobs(request: Request) -> Response:
    """Shows the page of all jobs."""
    return _page_of_session(request, "jobs", {})


@router.get("/artifacts")
def show_artifacts(request: Request) -> Response:
    """Shows the page of all artifacts."""
    return _page_of_session(request, "artifacts", {})


@router.get("/system")
def show_system(request: Request) -> Response:
    """Shows the page of the platform itself."""
    return _page_of_session(request, "system", {})


@router.get("/jobs/{job}")
def lead_to_overview(job: str) -> Response:
    """Leads to a job's first tab."""
    return RedirectResponse(f"/ui/jobs/{quote(job, safe='')}/overview", status_code=303, headers=HEADERS)


@router.get("/jobs/{job}/checkpoints/{checkpoint}")
def show_checkpoint(request: Request, job: str, checkpoint: str) -> Response:
    """Shows the page of one checkpoint of a job."""
    if not checkpoint.isdecimal():
        return unknown_page(request)
    return _page_of_session(request, "checkpoint", {"tab": "checkpoints", "job": job, "checkpoint": checkpoint})


@router.get("/jobs/{job}/{tab}")
def show_job(request: Request, job: str, tab: str) -> Response:
    """Shows a tab of a job, by its id or name."""
    if tab not in TABS:
        return unknown_page(request)
    return _page_of_session(request, tab.replace("-", "_"), {"tab": tab, "job": job})


@router.get("/login")
def show_login(request: Request, next: str = START_PAGE) -> Response:  # noqa: A002 - the query parameter's name
    """Shows the sign-in form, with a link to the issuer, if any."""
    return _login_page(request, next)


@router.post("/login")
def log_in(
    context: ContextOf,
    request: Request,
    token: Annotated[str, Form()],
    next: Annotated[str, Form()] = START_PAGE,  # noqa: A002 - the form field's name
) -> Response:
    """Begins a session.

    Scripts cannot read its cookie and other sites cannot send it; the cookie does not contain the token.
    """
    require_own_origin(request)
    token, hours = token.strip(), context.settings.session_hours
    origin = events.ORIGIN.get()
    if origin is not None and (wait_s := context.rates.failures.wait_s(origin.address)) > 0:
        return _refused_sign_in(request, next, RateLimitedError("too many sign-ins failed", wait_s))
    try:
        with context.sessions.begin() as session:
            user = authenticate_token(session, token)
            cookie = browser_sessions.begin(session, user, token=token, hours=hours)
    except TokenMissingError as error:
        return _refused_sign_in(request, next, note_refusal(request, error))
    answer = RedirectResponse(_own_address(next), status_code=303, headers=HEADERS)
    _set_cookie(request, answer, cookie, hours)
    return answer


@router.get("/sign-in")
def lead_to_issuer(context: ContextOf, request: Request, next: str = START_PAGE) -> Response:  # noqa: A002 - as above
    """Begins a sign-in at the issuer.

    Its secrets wait in a cookie of this browser for the way back.
    """
    if context.issuer is None:
        return RedirectResponse("/ui/login", status_code=303, headers=HEADERS)
    sign_in = SignIn(new_token(), new_token(), new_token() + new_token())
    url = context.issuer.sign_in_url(sign_in, _redirect_uri(request))
    answer = RedirectResponse(url, status_code=303, headers=HEADERS)
    answer.set_cookie(
        SIGN_IN_COOKIE,
        ".".join([sign_in.state, sign_in.nonce, sign_in.verifier, quote(_own_address(next), safe="")]),
        max_age=SIGN_IN_SECONDS,
        path="/ui/signed-in",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # the issuer leads the browser back
    )
    return answer


@router.get("/signed-in")
def come_from_issuer(context: ContextOf, request: Request, state: str = "", code: str = "") -> Response:
    """Begins a session for the user whom the issuer has sent back.

    This browser must have begun the sign-in.
    """
    kept = request.cookies.get(SIGN_IN_COOKIE, "").split(".", 3)
    target = _own_address(unquote(kept[3])) if len(kept) == 4 else START_PAGE
    try:
        user = _redeem(context, request, kept, state, code)
    except (TokenMissingError, RoleMissingError) as error:
        answer = _refused_sign_in(request, target, note_refusal(request, error), at_issuer=True)
    else:
        hours = context.settings.session_hours
        with context.sessions.begin() as session:
            cookie = browser_sessions.begin(session, user, token=None, hours=hours)
        # Not a redirect: on a way that began at another site, browsers do not send a strict cookie.
        answer = _page("signed_in.html", {"next": target})
        _set_cookie(request, answer, cookie, hours)
    answer.delete_cookie(SIGN_IN_COOKIE, path="/ui/signed-in", httponly=True, samesite="lax")
    return answer


@router.post("/logout")
def log_out(context: ContextOf, request: Request) -> Response:
    """Ends the session, also in the database.

    The session's token stays valid.
    """
    require_own_origin(request)
    with context.sessions.begin() as session:
        browser_sessions.end(session, request.cookies.get(SESSION_COOKIE, ""))
    answer = RedirectResponse("/ui/login", status_code=303, headers=HEADERS)
    answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/static/{name:path}")
async def show_file(request: Request, name: str) -> Response:
    """Serves a style sheet, module or picture; they are not secret."""
    if name == CHART_LIBRARY:
        return _chart_library(accepts_gzip="gzip" in request.headers.get("accept-encoding", ""))
    answer = await _files.get_response(name, request.scope)
    answer.headers.update(HEADERS)
    return answer


@router.get("/{path:path}")
def show_unknown(request: Request) -> Response:
    """Shows the page for unknown addresses."""
    return unknown_page(request)


@cache
def _library_bytes(*, compressed: bool) -> bytes:
    body = _LIBRARY_FILE.read_bytes()
    return gzip.compress(body, 6) if compressed else body


def _chart_library(*, accepts_gzip: bool) -> Response:
    """Returns the chart library.

    Its name changes with its content, so browsers cache it forever.
    """
    headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable", "Vary": "Accept-Encoding"}
    if accepts_gzip:
        headers["Content-Encoding"] = "gzip"
    return Response(_library_bytes(compressed=accepts_gzip), media_type="text/javascript", headers=headers)


def unknown_page(request: Request) -> Response:
    """Returns the page for unknown addresses."""
    signed_in = SESSION_COOKIE in request.cookies
    return _page("unknown.html", {"page": "unknown", "path": request.url.path, "signed_in": signed_in}, status=404)


def _page(template: str, values: Mapping[str, object], status: int = 200) -> Response:
    modules = imported_modules(template.removesuffix(".html"))
    body = _pages.get_template(template).render({"modules": modules, **values})
    return Response(body, status_code=status, media_type="text/html; charset=utf-8", headers=HEADERS)


def _page_of_session(request: Request, page: str, values: dict[str, str]) -> Response:
    """Returns the page, or a redirect to the login form.

    A browser without a session is redirected.
    """
    if SESSION_COOKIE not in request.cookies:
        address = request.url.path + (request.url.query and f"?{request.url.query}")
        return RedirectResponse(f"/ui/login?next={quote(address)}", status_code=303, headers=HEADERS)
    charted = {"chart_library": CHART_LIBRARY, "charts": CHARTS, "counters": COUNTERS, "parts": PARTS}
    return _page(f"{page}.html", {"page": page, "tabs": TABS, **charted, **values})


def _own_address(address: str) -> str:
    """Returns the path with its query if it is an own page.

    The login form must not redirect to another site.
    """
    return address if _OWN_ADDRESS.fullmatch(address) else START_PAGE


def _login_page(request: Request, target: str, refusal: str = "", status: int = 200) -> Response:
    context = request.app.state.context
    has_issuer = context is not None and context.issuer is not None
    link = f"/ui/sign-in?next={quote(_own_address(target), safe='')}" if has_issuer else ""
    return _page("login.html", {"next": _own_address(target), "refusal": refusal, "issuer": link}, status=status)


def _redeem(context: Context, request: Request, kept: list[str], state: str, code: str) -> Principal:
    is_ours = len(kept) == 4 and hmac.compare_digest(kept[0].encode(), state.encode())
    if context.issuer is None or not is_ours or not code:
        raise TokenMissingError("the sign-in was not started in this browser")
    return context.issuer.redeem(code, SignIn(*kept[:3]), _redirect_uri(request))


def _redirect_uri(request: Request) -> str:
    return f"{request.url.scheme}://{request.headers['host']}/ui/signed-in"


def _refused_sign_in(request: Request, target: str, error: ApiError, *, at_issuer: bool = False) -> Response:
    refusal = {
        RoleMissingError.code: "You have no role here. Ask an administrator to map one of your groups to a role.",
        TokenExpiredError.code: "This token has expired. Ask an administrator for a new token.",
        TokenRevokedError.code: "This token was revoked. Ask an administrator for a new token.",
        RateLimitedError.code: f"Too many sign-ins failed. Try again in {math.ceil(error.retry_after_s)} seconds.",
    }.get(error.code, ISSUER_REFUSAL if at_issuer else "This token is not valid. Copy the whole token, without quotes.")
    status = error.status if isinstance(error, RateLimitedError) else 403
    answer = _login_page(request, target, refusal, status)
    if isinstance(error, RateLimitedError):
        answer.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return answer


def _set_cookie(request: Request, answer: Response, cookie: str, hours: int) -> None:
    answer.set_cookie(
        SESSION_COOKIE,
        cookie,
        max_age=hours * 3600,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
