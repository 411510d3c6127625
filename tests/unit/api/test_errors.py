from __future__ import annotations

import pickle

from keyscale.api.errors import StoreUnavailableError


def test_an_error_survives_pickling_with_its_message() -> None:
    copy = pickle.loads(pickle.dumps(StoreUnavailableError("it is away")))  # noqa: S301 - our own bytes
    assert (copy.detail, copy.code) == ("it is away", "STORE_UNAVAILABLE")
