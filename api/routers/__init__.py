"""The routes, which are thin.

Each route reads the request, calls a service and returns its answer.

Their modules have no `from __future__ import annotations`, because FastAPI reads the annotations when it starts.
"""
