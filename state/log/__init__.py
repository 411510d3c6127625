"""A job's commit log, what it means, and what it lets a job start from and delete."""
