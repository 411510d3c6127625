"""Makes a Grafana dashboard, alerts with tests, and a reference page."""
