"""The control plane's own look at the object store: is it usable, and is a savepoint there? Drivers do everything else."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from api.errors import StoreUnavailableError
from state.errors import KeyscaleError
from state.identifiers import CheckpointId, JobId
from state.layout import Layout, location_of
from state.manifest import read_manifest
from state.objects import ObjectNotFoundError, open_store, probe

if TYPE_CHECKING:
    from state.manifest import Manifest

_HEALTH_TTL_S = 10.0


@dataclass(frozen=True, slots=True)
class PublishedSavepoint:
    """A savepoint whose manifest is in the store."""

    location: str
    checkpoint_id: CheckpointId


class StoreCheck:
    """Looks at object stores by their URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._checked_at_s = float("-inf")
        self._problem: str | None = None

    def require_usable(self, url: str) -> None:
        """Makes sure that a store answers and honours conditional creates.

        Raises:
            StoreUnavailableError: It does not.
        """
        try:
            probe(open_store(url))
        except KeyscaleError as error:
            raise StoreUnavailableError(f"{error.code}: {error} {error.advice}") from error
        except OSError as error:
            raise StoreUnavailableError(f"{type(error).__name__}: {error.strerror or 'no access'}") from error

    def problem(self) -> str | None:
        """Says what is wrong with the configured store, from a look at most ten seconds old; None: nothing."""
        with self._lock:
            if time.monotonic() - self._checked_at_s > _HEALTH_TTL_S:
                try:
                    self.require_usable(self._url)
                except StoreUnavailableError as error:
                    self._problem = error.detail
                else:
                    self._problem = None
                self._checked_at_s = time.monotonic()
            return self._problem

    def find_savepoint(self, store_url: str, job_id: str, savepoint_id: str) -> PublishedSavepoint | None:
        """Reads back whether a savepoint has been published, after its driver ended without saying so.

        Raises:
            StoreUnavailableError: The store does not say. It has to be asked again: never guess.
        """
        path = Layout(JobId(job_id)).manifest(CheckpointId(0), savepoint_id)
        try:
            manifest: Manifest = read_manifest(open_store(store_url), path)
        except ObjectNotFoundError:
            return None
        except KeyscaleError as error:
            if error.retryable:
                raise StoreUnavailableError(f"{error.code}: {error}") from error
            return None  # a manifest that cannot be read is no savepoint
        except OSError as error:
            raise StoreUnavailableError(f"{type(error).__name__}: {error.strerror or 'no access'}") from error
        return PublishedSavepoint(location_of(store_url, path), manifest.checkpoint_id)
