"""The control plane.

It is an HTTP API over PostgreSQL, and the reconciler that keeps jobs in their desired state.
"""
