"""The schema registry without its server: types of schemas, compatibility, the state of the log of schemas.

Implements Avro, JSON Schema and Protobuf, and Confluent's published rules, codes and records. Does not handle: HTTP,
the log itself, authorization. Pure: no clock, network or disk; `client/schema_registry.py` is the HTTP client.

| file | contents |
|---|---|
| `avro.py` `avro_matching.py` | Avro: types, and compatibility |
| `json_matching.py` | JSON Schema |
| `proto.py` `proto_text.py` `proto_bytes.py` `proto_matching.py` | Protobuf: a tree, its text and binary forms, compatibility |
| `schemas.py` | all three behind one interface, and references |
| `compatibility.py` | levels |
| `state.py` | the fold over the topic `_schemas` |
| `changes.py` | permitted changes, as entries to append |
| `framing.py` `avro_values.py` `proto_messages.py` | values: their prefix, and decoding |
| `framed.py` `columns.py` `avro_columns.py` `proto_columns.py` `json_columns.py` | values as columns |
| `value_json.py` | values as JSON, for people |
| `errors.py` | codes |
"""
