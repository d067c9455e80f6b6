"""The web console and the admin port: what a node does, for people and for their monitoring.

Knows: HTTP, and the node as a client does. Refuses to know: the inside of a server. Runs in a process of its own, started by
`braid serve` and `braid dev`; it ends when its node does.

| file | what |
|---|---|
| `__main__.py` | the process: its two sockets, and when it ends |
| `node_client.py` | questions to the node over the private socket, snapshots, rates |
| `listener_clients.py` | topics and keys, as an ordinary client reads and writes them, in the name of who has signed in |
| `access_control.py` | who is let in: Host, token, cookie, roles, forms of our own pages only |
| `actions/` | what changes the node: planned, confirmed, done, told to its log |
| `grafana.json` | a Grafana dashboard over the metrics of `model/reporting/metrics.py`, as Grafana exports it |
| `history.py` `table_sorting.py` | the last hour, for plots; which rows of a table, in which order |
| `health.py` | `/healthz` and `/readyz`, with reasons |
| `record_tail.py` `record_filter.py` | records of a topic, as they come, for people: never faster than they read; which of them |
| `record_values.py` | values by the schemas that they name |
| `wire_messages.py` | messages of one connection, decoded as they come by |
| `spark_queries.py` `spark_pipelines.py` | the last report of each Spark query; what those of a pipeline add up to |
| `rendering.py` | templates, and how figures look |
| `pages.py` `forms.py` `form_fields.py` `server_sent_events.py` | pages; what they send; what they are sent as it happens |
| `schema_registry.py` `access.py` `routes.py` | the schema registry: its log, who may ask, its addresses |
| `app.py` | the table of addresses |
"""
