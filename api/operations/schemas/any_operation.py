"""A request of an operation of any kind."""

from typing import Annotated, Literal

from pydantic import Field

from keyscale.vocabulary import OperationKind

from .change import RollbackRequest, UpdateRequest
from .operation import OperationRequest, RescaleRequest, StartRequest


class StartOperation(StartRequest):
    """Starts a job."""

    kind: Literal[OperationKind.START]


class PlainOperation(OperationRequest):
    """Stops, drains, cancels or restarts a job, or takes a snapshot."""

    kind: Literal[
        OperationKind.STOP,
        OperationKind.DRAIN,
        OperationKind.CANCEL,
        OperationKind.RESTART,
        OperationKind.CHECKPOINT,
        OperationKind.SAVEPOINT,
    ]


class RescaleOperation(RescaleRequest):
    """Changes a running job's parallelism."""

    kind: Literal[OperationKind.RESCALE]


class UpgradeOperation(UpdateRequest):
    """Changes a job's specification."""

    kind: Literal[OperationKind.UPGRADE]


class RollbackOperation(RollbackRequest):
    """Takes a job back to an earlier revision."""

    kind: Literal[OperationKind.ROLLBACK]


AnyOperation = Annotated[
    StartOperation | PlainOperation | RescaleOperation | UpgradeOperation | RollbackOperation,
    Field(discriminator="kind"),
]
