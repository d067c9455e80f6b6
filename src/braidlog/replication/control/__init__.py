"""Decisions about nodes: who is alive (SWIM), who leads, which replicas move."""
