"""The layers of a pipeline: bronze records, silver rows, gold aggregates, and checks on them."""
