"""The nouns of the API, each with its calls."""
