"""Mayfly's adapter to the key-value service: handlers and statuses."""
