from __future__ import annotations

from api.cli.problems import CliError


class DemoError(CliError):
    """The demo did not get to its end."""

    code = "DEMO_INCOMPLETE"
    title = "The demo did not get to its end"
    domain = "internal"
    retryable = True
    advice = "The message says what was waited for. Under <home>/demo, control-plane.log and runs/ hold the logs."
