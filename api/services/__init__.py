"""Use cases. Each function owns its transaction; none writes a job's status, which is `api.lifecycle`'s alone."""
