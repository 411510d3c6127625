"""The demo's play of an outage: a backlog, cleared by the autoscaler."""
