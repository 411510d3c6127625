"""The graph of a job: its nodes, their schemas, and the checked topology that the runtime runs."""
