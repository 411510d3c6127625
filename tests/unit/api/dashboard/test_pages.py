"""The pages, without a database: they hold no data, run no foreign script, and lead to no foreign site."""

from __future__ import annotations

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from keyscale.api import dashboard
from keyscale.api.access.browser_sessions import SESSION_COOKIE
from keyscale.api.dashboard.router import CHART_LIBRARY, CHARTS, COUNTERS, PARTS, TABS, router
from keyscale.api.web.error_handlers import add_handlers
from tests.support.coroutines import run_coroutine

HERE = Path(dashboard.__file__).parent
TEMPLATES = sorted((HERE / "templates").glob("*.html"))
MODULES = sorted((HERE / "static").rglob("*.js"))
FILES = [path for path in sorted((HERE / "static").rglob("*")) if path.is_file()]
ORIGIN = "http://127.0.0.1:8080"
JOB_TABS = [f"/ui/jobs/departures/{tab}" for tab in TABS]
PAGES = ["/ui/", "/ui/artifacts", "/ui/system", "/ui/jobs/departures/checkpoints/7", *JOB_TABS]
CHOSEN = ["/ui/?q=team%3A+web&sort=-Name", "/ui/jobs/departures/rescale?to=4"]
"""Pages whose address says more than their path."""


class Browser:
    """Sends requests to an application that has only the pages; follows no redirects."""

    def __init__(self, *, session: bool) -> None:
        self.app = FastAPI()
        self.app.state.context = None  # no test here may reach the database
        add_handlers(self.app)
        self.app.include_router(router)
        self.cookies = {SESSION_COOKIE: "a-token"} if session else {}

    def get(self, path: str, **options: Any) -> httpx.Response:
        return run_coroutine(self._request("GET", path, options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return run_coroutine(self._request("POST", path, options))

    async def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=self.cookies) as client:
            return await client.request(method, path, **options)


@pytest.mark.parametrize("page", [*PAGES, *CHOSEN])
def test_a_browser_without_a_session_is_led_to_the_login_form_and_back(page: str) -> None:
    answer = Browser(session=False).get(page)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/ui/login?next={quote(page)}"
    form = Browser(session=False).get(answer.headers["location"])
    assert f'name="next" value="{escape(page)}"' in form.text


@pytest.mark.parametrize("page", [*PAGES, "/ui/login", "/ui/static/style.css", "/ui/static/api.js"])
def test_every_answer_allows_scripts_styles_and_requests_of_its_own_origin_only(page: str) -> None:
    answer = Browser(session=True).get(page)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", [*TEMPLATES, *FILES], ids=lambda path: path.name)
def test_no_file_holds_inline_code_or_refers_to_another_site(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?<!:)//[a-z]+\.|https?://", text)
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", text))
        modules = re.findall(r'src="/ui/static/([\w/.{} ]+)"', text)
        assert all((HERE / "static" / name).is_file() for name in modules if "{{" not in name)
    if path.suffix == ".js":
        assert not re.search(r"\.(innerHTML|outerHTML) *=[^=]|insertAdjacentHTML|document\.write|\beval\(", text)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_module_imports_existing_files_and_looks_up_ids_that_a_template_has(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r'from "(\.[\w./]+)"', text):
        assert (path.parent / name).is_file()
    ids = {found for template in TEMPLATES for found in re.findall(r'\bid="([\w-]+)"', template.read_text())}
    assert set(re.findall(r'byId\("([\w-]+)"\)', text)) <= ids


@pytest.mark.parametrize("page", [*PAGES, "/ui/login", "/ui/nothing"])
def test_a_page_names_all_modules_that_its_own_one_needs(page: str) -> None:
    text = Browser(session=True).get(page).text
    own = re.findall(r'src="/ui/static/([\w/.]+)"', text)
    needed, left = set[Path](), [(HERE / "static" / name).resolve() for name in own]
    while left:
        module = left.pop()
        imported = {(module.parent / name).resolve() for name in re.findall(r'"(\.[\w./]+\.js)"', module.read_text())}
        left += imported - needed
        needed |= imported
    named = re.findall(r'rel="modulepreload" href="/ui/static/([\w/.]+)"', text)
    assert {(HERE / "static" / name).resolve() for name in named} == needed


def test_a_hostile_job_in_the_address_becomes_text() -> None:
    hostile = quote('"><img src=x onerror=alert(1)>')
    answer = Browser(session=True).get(f"/ui/jobs/{hostile}/overview")
    assert answer.status_code == 200
    assert "<img" not in answer.text
    assert "&#34;&gt;&lt;img src=x onerror=alert(1)&gt;" in answer.text


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example/ui/",
        "/ui/\\evil",
        "/v1/jobs",
        "javascript:alert(1)",
        "/ui/\nx",
        "/v1/jobs?/ui/",
        "/ui/?\nx",
        "/ui/?a=1\\evil",
        '/ui/?"><script>',
    ],
)
def test_the_login_form_redirects_to_our_own_pages_only(target: str) -> None:
    form = Browser(session=False).get("/ui/login", params={"next": target})
    assert 'name="next" value="/ui/"' in form.text


@pytest.mark.parametrize("path", ["/ui/login", "/ui/logout"])
def test_a_form_of_another_origin_is_refused(path: str) -> None:
    client = Browser(session=True)
    for origin in ("https://evil.example", "http://127.0.0.1:9999", "null"):
        answer = client.post(path, data={"token": "t"}, headers={"Origin": origin})
        assert answer.status_code == 403
        assert answer.json()["code"] == "ORIGIN_NOT_ALLOWED"


@pytest.mark.parametrize("name", ["..%2Frouter.py", "%2e%2e/router.py", "..%2ftemplates%2fjob.html", "no-such.css", ""])
def test_nothing_but_the_static_files_is_served(name: str) -> None:
    assert Browser(session=True).get(f"/ui/static/{name}").status_code == 404


def test_an_unchanged_file_is_not_sent_again() -> None:
    client = Browser(session=False)
    first = client.get("/ui/static/style.css")
    again = client.get("/ui/static/style.css", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304


def test_the_chart_library_is_kept_by_browsers_for_good_and_comes_from_this_origin() -> None:
    answer = Browser(session=False).get(f"/ui/static/{CHART_LIBRARY}", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    assert "plotly.js v" in answer.text[:100]
    plain = Browser(session=False).get(f"/ui/static/{CHART_LIBRARY}", headers={"Accept-Encoding": "identity"})
    assert plain.text == answer.text
    assert Browser(session=False).get("/ui/static/plotly-0000000000000000.js").status_code == 404


def test_a_page_with_all_that_it_loads_is_below_a_megabyte() -> None:
    assert sum(path.stat().st_size for path in FILES) < 500_000


def test_a_job_has_its_tabs_as_addresses() -> None:
    answer = Browser(session=True).get("/ui/jobs/departures")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs/departures/overview")
    page = Browser(session=True).get("/ui/jobs/departures/rescale").text
    assert all(f'href="/ui/jobs/departures/{tab}"' in page for tab in TABS)
    assert '<a href="/ui/jobs/departures/rescale" aria-current="page">Rescale</a>' in page


@pytest.mark.parametrize("path", ["/ui/nothing", "/ui/jobs/departures/nothing", "/ui/jobs/a/checkpoints/x", "/nothing"])
def test_an_unknown_page_is_a_page(path: str) -> None:
    answer = Browser(session=True).get(path, headers={"Accept": "text/html,application/xhtml+xml"})
    assert answer.status_code == 404
    assert "Page not found" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_program_that_asks_for_nothing_gets_a_problem_and_not_a_page() -> None:
    answer = Browser(session=True).get("/nothing", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (404, "ROUTE_NOT_FOUND")


def test_a_page_gets_the_charts_the_counters_and_the_parts_of_a_batch_as_they_are_declared() -> None:
    lines = {
        line["name"]: (line["label"], line["held"], line["lasting"])
        for chart in json.loads(CHARTS)
        for line in chart["lines"]
    }
    chosen = ("input_rate", "lag_ms", "state_size", "late_records")
    assert [lines[name] for name in chosen] == [
        ("Input", False, False),
        ("Lag", True, False),
        ("State", True, True),
        ("Late", False, True),
    ]
    [records] = [chart for chart in json.loads(CHARTS) if chart["title"] == "Records"]
    assert (records["kind"], [line["name"] for line in records["lines"]]) == ("rate", ["input_rate", "output_rate"])
    assert {each["name"]: each["label"] for each in json.loads(COUNTERS)} == {
        "late_records": "Late",
        "dead_letters": "Dead letters",
        "lost_records": "Lost by sources",
    }
    assert json.loads(PARTS)[0] == {"name": "wait_ms", "label": "Waiting for input"}
    page = unescape(Browser(session=True).get("/ui/jobs/departures/overview").text)
    assert (CHARTS in page, COUNTERS in page, PARTS in page) == (True, True, True)


def test_the_name_of_a_job_is_quoted_in_the_address_of_its_first_tab() -> None:
    answer = Browser(session=True).get("/ui/jobs/a%20%3Fb")
    assert answer.headers["location"] == "/ui/jobs/a%20%3Fb/overview"
