"""The requests and answers about jobs."""
