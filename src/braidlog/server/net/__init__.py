"""Connections: listeners, sessions, their limits and budgets, TLS, wire logs."""
