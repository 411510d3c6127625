"""The error of a demo that does not complete."""

from __future__ import annotations

from keyscale.api.cli.errors import CliError


class DemoError(CliError):
    """The demo did not complete."""

    code = "DEMO_INCOMPLETE"
    title = "The demo did not complete"
    domain = "internal"
    retryable = True
    advice = "The message says what the demo waited for. The logs are control-plane.log and runs/ under <home>/demo."
