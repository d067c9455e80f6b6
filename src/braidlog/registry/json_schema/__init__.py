"""JSON Schema: which columns a schema describes, and which schemas are compatible."""
