"""Pipelines on Spark Declarative Pipelines: definitions, the engine that runs them, backfill."""
