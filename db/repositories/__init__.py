"""Queries, one module per noun: functions over a session. They begin and end no transaction."""
