"""Support bundles: what is known of a job, in one file."""
