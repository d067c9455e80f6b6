"""Replay and backfill of a pipeline on Structured Streaming."""
