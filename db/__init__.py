"""The control plane's database: models, queries, migrations, and PostgreSQL itself where none is given."""
