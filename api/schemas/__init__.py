"""The forms of the API's requests and answers, with the examples of its OpenAPI description.

Fields that end in `_at_ms` or `_timestamp` are milliseconds since the epoch, UTC; durations are milliseconds, sizes are
bytes.
"""
