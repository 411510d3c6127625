"""An operator with one state, as a loaded program declares it."""

from __future__ import annotations

from keyscale.identifiers import OperatorUid
from keyscale.state.documents.manifest import OperatorDeclaration
from keyscale.state.keyed.schema import KeyedSchema, StateKind, StateSchema, ValueFormat
from keyscale.state.restore.program_change import DeclaredOperator

TOTALS = DeclaredOperator(
    OperatorUid("totals"),
    OperatorDeclaration(
        (("user", "string"),),
        KeyedSchema((("user", "string"),), (StateSchema("total", StateKind.VALUE, (ValueFormat("int64"),)),)),
    ),
    ttls_ms={"total": 1000},
)
