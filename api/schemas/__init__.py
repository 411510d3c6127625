"""The API's requests and answers, with examples for OpenAPI.

Fields that end in `_at_ms` or `_timestamp` are milliseconds since the epoch, UTC; durations are milliseconds, sizes are
bytes.
"""
