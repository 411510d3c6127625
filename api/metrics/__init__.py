"""The metrics of jobs, over time and for Prometheus."""
