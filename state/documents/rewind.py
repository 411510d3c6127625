"""A rewind in a job's history, in manifests.

The output of earlier attempts is part of the history only up to the batch that a rewind continues from.
"""

from __future__ import annotations

import msgspec

from keyscale.identifiers import Attempt, BatchId


class Rewind(msgspec.Struct, frozen=True):
    """The start of an attempt that went back.

    Attributes:
        attempt: The attempt.
        batch_id: The last batch before it that the history keeps; -1 for a start without state, or from another job's
            snapshot.
    """

    attempt: Attempt
    batch_id: BatchId
