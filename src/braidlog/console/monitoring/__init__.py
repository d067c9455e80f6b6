"""Liveness and readiness, history for plots, progress of Spark queries and pipelines."""
