"""Serves the pages under /ui, and turns a pasted token into the session's cookie.

The pages hold no data: their modules read it from the public API, which checks the cookie. So a page needs no database,
and an open page survives an outage of the database.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from keyscale.api.access.identities import SESSION_COOKIE, authenticate_token
from keyscale.api.errors import OriginNotAllowedError, TokenMissingError
from keyscale.api.routers.dependencies import Control  # noqa: TC001 - FastAPI reads the annotation when it starts

HERE = Path(__file__).parent
START_PAGE = "/ui/"
SESSION_SECONDS = 30 * 24 * 3600

# Only our own files and our own API; no inline script or style; no frame around the page.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_OWN_PATH = re.compile(r"/ui/[A-Za-z0-9._~%/-]*")

_pages = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined)
_files = StaticFiles(directory=HERE / "static")

router = APIRouter(prefix="/ui", include_in_schema=False)


@router.get("/")
def show_jobs(request: Request) -> Response:
    """Shows the page of all jobs."""
    return _page_of_session(request, "jobs.html", {"page": "jobs"})


@router.get("/jobs/{job}")
def show_job(request: Request, job: str) -> Response:
    """Shows the page of one job, by its id or name."""
    return _page_of_session(request, "job.html", {"page": "job", "job": job})


@router.get("/login")
def show_login(next: str = START_PAGE) -> Response:  # noqa: A002 - the query parameter's name
    """Shows the form that takes a token."""
    return _page("login.html", {"next": _own_path(next), "refusal": ""})


@router.post("/login")
def log_in(
    control: Control,
    request: Request,
    token: Annotated[str, Form()],
    next: Annotated[str, Form()] = START_PAGE,  # noqa: A002 - the form field's name
) -> Response:
    """Starts a session: the token is kept in a cookie that no script can read and no other site can send."""
    _refuse_foreign_form(request)
    token = token.strip()
    try:
        with control.sessions() as session:
            authenticate_token(session, token)
    except TokenMissingError:
        refusal = "This token is not valid. Copy the whole token, without quotes."
        return _page("login.html", {"next": _own_path(next), "refusal": refusal}, status=403)
    answer = RedirectResponse(_own_path(next), status_code=303, headers=HEADERS)
    answer.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=SESSION_SECONDS,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/logout")
def log_out(request: Request) -> Response:
    """Ends the session in this browser; the token itself stays valid."""
    _refuse_foreign_form(request)
    answer = RedirectResponse("/ui/login", status_code=303, headers=HEADERS)
    answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/static/{name}")
async def show_file(request: Request, name: str) -> Response:
    """Serves a style sheet, module or picture; they are not secret."""
    answer = await _files.get_response(name, request.scope)
    answer.headers.update(HEADERS)
    return answer


def _page(template: str, values: dict[str, str], status: int = 200) -> Response:
    body = _pages.get_template(template).render(values)
    return Response(body, status_code=status, media_type="text/html; charset=utf-8", headers=HEADERS)


def _page_of_session(request: Request, template: str, values: dict[str, str]) -> Response:
    """Returns the page, or a redirect to the login form for a browser without a session."""
    if SESSION_COOKIE not in request.cookies:
        return RedirectResponse(f"/ui/login?next={quote(request.url.path)}", status_code=303, headers=HEADERS)
    return _page(template, values)


def _own_path(path: str) -> str:
    """Returns `path` if it is one of our pages: the login form must not redirect to another site."""
    return path if _OWN_PATH.fullmatch(path) else START_PAGE


def _refuse_foreign_form(request: Request) -> None:
    """Refuses a form that another site's page sent, for example to sign a user in under another name."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise OriginNotAllowedError("the form was sent by a page of another origin")
