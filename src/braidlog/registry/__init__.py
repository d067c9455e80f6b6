"""A schema registry without its server: types of schemas, what fits what, what the log of schemas says.

Knows: Avro, JSON Schema, Protobuf; Confluent's published rules, codes and records. Refuses to know: HTTP, the log itself, who may
do what. Pure: no clock, no network, no disk; `client/schema_registry.py` asks one over HTTP.

| file | what |
|---|---|
| `schema.py` `avro_compatibility.py` | Avro: types, and what reads what |
| `json_compatibility.py` | JSON Schema |
| `schema.py` `text.py` `descriptor.py` `proto_compatibility.py` | Protobuf: a tree, as text, as bytes; what reads what |
| `schemas.py` | all three behind one face, and references |
| `compatibility.py` | levels |
| `registry_state.py` | the fold over the topic `_schemas` |
| `changes.py` | what may be changed, as entries to append |
| `framing.py` `values.py` `messages.py` | values: what stands before them, how they are read |
| `framed_columns.py` `value_columns.py` `columns.py` `columns.py` `columns.py` | values as columns |
| `value_json.py` | values as JSON, for people |
| `errors.py` | codes |
"""
