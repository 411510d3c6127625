"""Run by Alembic: migrates over the connection that `keyscale.db.migrate` passes on."""

from __future__ import annotations

from alembic import context

from keyscale.db import models

context.configure(connection=context.config.attributes["connection"], target_metadata=models.Job.metadata)
with context.begin_transaction():
    context.run_migrations()
