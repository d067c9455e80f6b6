"""The log of the schema registry (topic `_schemas`), and the views of it that other parts of a node read."""
