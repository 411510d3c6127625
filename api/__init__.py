"""The control plane: an HTTP API over PostgreSQL, and the reconciler that keeps jobs as they are wanted."""
