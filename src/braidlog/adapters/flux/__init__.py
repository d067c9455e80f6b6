"""Flux's adapter: handlers and error codes."""
