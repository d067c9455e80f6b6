"""The schema registry without its server: types of schemas, compatibility, the state of the log of schemas.

Implements Avro, JSON Schema and Protobuf, and Confluent's published rules, codes and records. Does not handle: HTTP,
the log itself, authorization. Pure: no clock, network or disk; `client/schema_registry.py` is the HTTP client.

| file | contents |
|---|---|
| `schema.py` `avro_compatibility.py` | Avro: types, and compatibility |
| `json_compatibility.py` | JSON Schema |
| `schema.py` `text.py` `descriptor.py` `proto_compatibility.py` | Protobuf: a tree, its text and binary forms, compatibility |
| `schemas.py` | all three behind one interface, and references |
| `compatibility.py` | levels |
| `registry_state.py` | the fold over the topic `_schemas` |
| `changes.py` | permitted changes, as entries to append |
| `framing.py` `values.py` `messages.py` | values: their prefix, and decoding |
| `framed_columns.py` `value_columns.py` `columns.py` `columns.py` `columns.py` | values as columns |
| `value_json.py` | values as JSON, for people |
| `errors.py` | codes |
"""
