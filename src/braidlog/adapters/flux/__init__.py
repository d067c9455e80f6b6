"""Flux meets the services."""
