"""The command, environment and time limit of reads of state."""

from __future__ import annotations

import os
import sys

from keyscale.installation import IMPORT_PATH

SECONDS_MAX = 60.0
COMMAND = (sys.executable, "-m", "keyscale.state_io.reading_process")
_PASSED_ON = frozenset({"HOME", "HTTPS_PROXY", "KEYSCALE_S3_ENDPOINT", "LANG", "NO_PROXY", "PATH", "SSL_CERT_FILE"})
"""The settings that the process gets besides the settings of the S3 client. Secrets of the control plane stay out."""


def environment_of(scratch: str) -> dict[str, str]:
    """Returns the environment of a process that reads state into a directory."""
    passed_on = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("AWS_")}
    return {**passed_on, "PYTHONPATH": str(IMPORT_PATH), "TMPDIR": scratch}
