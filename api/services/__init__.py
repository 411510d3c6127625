"""The use cases.

Each function owns its transaction; only `keyscale.api.lifecycle` writes a job's status.
"""
