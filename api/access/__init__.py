"""Access: tokens, and the senders of requests."""
