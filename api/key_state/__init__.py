"""The state of one key of a job."""
