"""Protobuf schemas: `.proto` text, descriptors, compatibility, and values as columns."""
