"""Jobs: create, show, clone and delete them.

Only `keyscale.api.lifecycle` writes a job's status.
"""
