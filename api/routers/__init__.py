"""The routes, thin: they read the request, call a service and return its answer.

Their modules have no `from __future__ import annotations`: FastAPI reads the annotations when it is started.
"""
