"""A request of an operation of any kind."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, create_model

from keyscale.vocabulary import PLAIN, OperationKind

from .change import RollbackRequest, UpdateRequest
from .operation import OperationRequest, RescaleRequest, StartRequest


class StartOperation(StartRequest):
    """Starts a job."""

    kind: Literal[OperationKind.START]


class RescaleOperation(RescaleRequest):
    """Changes a running job's parallelism."""

    kind: Literal[OperationKind.RESCALE]


class UpgradeOperation(UpdateRequest):
    """Changes a job's specification."""

    kind: Literal[OperationKind.UPGRADE]


class RollbackOperation(RollbackRequest):
    """Takes a job back to an earlier revision."""

    kind: Literal[OperationKind.ROLLBACK]


if TYPE_CHECKING:

    class PlainOperation(OperationRequest):
        """Requests an operation without arguments."""

        kind: OperationKind
else:
    PlainOperation = create_model(
        "PlainOperation",
        __base__=OperationRequest,
        __doc__="Requests an operation without arguments: " + ", ".join(PLAIN) + ".",
        kind=Literal[PLAIN],
    )

AnyOperation = Annotated[
    StartOperation | PlainOperation | RescaleOperation | UpgradeOperation | RollbackOperation,
    Field(discriminator="kind"),
]
