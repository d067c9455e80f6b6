"""Avro schemas: parse, canonicalize, compare, and decode values into columns."""
