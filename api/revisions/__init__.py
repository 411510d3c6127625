"""The revisions of a job: show and compare them."""
