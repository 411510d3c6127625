"""The migrations make exactly the tables of the models."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import CheckConstraint, inspect, text

from keyscale.db.base import Base
from keyscale.db.engine import open_engine
from keyscale.db.errors import SchemaTooNewError
from keyscale.db.migrate import alembic_config, migrate


def test_migrated_tables_equal_the_models(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
        made = inspect(connection)
        for table in Base.metadata.sorted_tables:
            checks = {check["name"] for check in made.get_check_constraints(table.name)}
            assert checks == {check.name for check in table.constraints if isinstance(check, CheckConstraint)}
    engine.dispose()


def test_migrating_again_changes_nothing_and_going_back_leaves_nothing(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    migrate(engine)
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    migrate(engine)
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused(postgres_url: str) -> None:
    engine = open_engine(postgres_url)
    migrate(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNewError, match="9999"):
        migrate(engine)
    engine.dispose()
