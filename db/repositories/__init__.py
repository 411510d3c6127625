"""Queries, one module a noun: functions over a session. They begin and end no transaction."""
