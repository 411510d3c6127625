"""The tokens of users."""
