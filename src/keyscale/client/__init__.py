"""The Python client of the control plane: `from keyscale.client import Keyscale, AsyncKeyscale`."""

from __future__ import annotations

from .errors import ClientError, OperationFailedError, RefusedError, WaitTimeoutError
from .keyscale import AsyncKeyscale, Keyscale

__all__ = ["AsyncKeyscale", "ClientError", "Keyscale", "OperationFailedError", "RefusedError", "WaitTimeoutError"]
