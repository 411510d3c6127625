"""The routes by which a control plane proves who it is."""

from fastapi import APIRouter, HTTPException

from keyscale.address_proof import prove
from keyscale.db.repositories import replicas
from keyscale.jobs.protocol.control_address import Proof

from ..access.tokens import token_sha256
from ..control_plane.dependencies import ContextOf

router = APIRouter(prefix="/proofs", tags=["proofs"], include_in_schema=False)


@router.get("/home")
def prove_home(context: ContextOf, nonce: str = "") -> Proof:
    """Proves that this control plane knows the admin's token of its home."""
    try:
        token = context.settings.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise HTTPException(404, "this control plane keeps no admin token") from error
    return Proof(proof=prove(token_sha256(token), nonce, context.settings.control_url))


@router.get("/replica")
def prove_replica(context: ContextOf, nonce: str = "") -> Proof:
    """Proves that this replica has announced itself in the database."""
    with context.reads() as session:
        key = replicas.shared_key(session)
    return Proof(proof=prove(key, nonce, context.settings.control_url, context.announcer.replica_id))
