"""The web console and the admin port: what a node does, for people and for their monitoring.

Knows: HTTP, and the node as a client does. Refuses to know: the inside of a server. Runs in a process of its own, started by
`braid serve` and `braid dev`; it ends when its node does.

| file | what |
|---|---|
| `__main__.py` | the process: its two sockets, and when it ends |
| `node.py` | questions to the node over the private socket, snapshots, rates |
| `clients.py` | topics and keys, as an ordinary client reads and writes them, in the name of who has signed in |
| `guard.py` | who is let in: Host, token, cookie, roles, forms of our own pages only |
| `actions/` | what changes the node: planned, confirmed, done, told to its log |
| `grafana.json` | a Grafana dashboard over the metrics of `model/metrics.py`, as Grafana exports it |
| `history.py` `listing.py` | the last hour, for plots; which rows of a table, in which order |
| `health.py` | `/healthz` and `/readyz`, with reasons |
| `tailing.py` `record_filter.py` | records of a topic, as they come, for people: never faster than they read; which of them |
| `record_values.py` | values by the schemas that they name |
| `wire_messages.py` | messages of one connection, decoded as they come by |
| `spark_queries.py` `spark_pipelines.py` | the last report of each Spark query; what those of a pipeline add up to |
| `rendering.py` | templates, and how figures look |
| `pages.py` `forms.py` `fields.py` `feeds.py` | pages; what they send; what they are sent as it happens |
| `registry.py` `registry_access.py` `registry_routes.py` | the schema registry: its log, who may ask, its addresses |
| `app.py` | the table of addresses |
"""
