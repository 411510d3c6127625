"""Notifications: subscriptions to events, the channels of messages, and their delivery."""
