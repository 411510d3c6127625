"""The control plane's database: models, queries, migrations, and an embedded PostgreSQL."""
