"""A schema registry without its server: types of schemas, what fits what, what the log of schemas says.

Knows: Avro, JSON Schema, Protobuf; Confluent's published rules, codes and records. Refuses to know: HTTP, the log itself, who may
do what. Pure: no clock, no network, no disk; `client/schema_registry.py` asks one over HTTP.

| file | what |
|---|---|
| `avro.py` `avro_matching.py` | Avro: types, and what reads what |
| `json_matching.py` | JSON Schema |
| `proto.py` `proto_text.py` `proto_bytes.py` `proto_matching.py` | Protobuf: a tree, as text, as bytes; what reads what |
| `schemas.py` | all three behind one face, and references |
| `compatibility.py` | levels |
| `state.py` | the fold over the topic `_schemas` |
| `changes.py` | what may be changed, as entries to append |
| `framing.py` `avro_values.py` `proto_messages.py` | values: what stands before them, how they are read |
| `framed.py` `columns.py` `avro_columns.py` `proto_columns.py` `json_columns.py` | values as columns |
| `value_json.py` | values as JSON, for people |
| `errors.py` | codes |
"""
