"""The log of the schema registry: the topic `_schemas`, and the views of it that other parts of a node read."""
