"""Queries, one module per noun: functions over a session.

They neither begin nor end transactions.
"""
