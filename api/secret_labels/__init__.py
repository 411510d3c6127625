"""The labels of the platform's secrets for jobs."""
