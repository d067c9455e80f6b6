"""The web console, the admin port and the schema registry.

Runs in its own process, started by `braid serve` and `braid dev`, and ends when its node ends. It uses the node as a client
does. Does not handle: the internals of a server.

| file | what |
|---|---|
| `__main__.py` | the process: its two sockets, and when it ends |
| `node.py` | requests to the node over the private socket, snapshots, rates |
| `clients.py` | clients for topics and keys, with the identity of the signed-in user |
| `access_control.py` | access: Host, token, cookie, roles, CSRF protection |
| `actions/` | changes to the node: planned, confirmed, done, logged |
| `grafana.json` | a Grafana dashboard over the metrics of `model/reporting/metrics.py`, as Grafana exports it |
| `history.py` `table_sorting.py` | samples of the last hour for plots; filter and order of tables |
| `health.py` | `/healthz` and `/readyz`, with reasons |
| `record_tail.py` `record_filter.py` | live records of a topic at a bounded rate; record filters |
| `record_values.py` | values decoded by their schemas |
| `wire_messages.py` | live decoded messages of one connection |
| `spark_queries.py` `spark_pipelines.py` | the last report of each Spark query; the totals of each pipeline |
| `rendering.py` | templates and number formats |
| `pages.py` `forms.py` `fields.py` `server_sent_events.py` | pages; forms; form fields; server-sent events |
| `registry.py` `access.py` `routes.py` | the schema registry: its log, access, routes |
| `app.py` | the table of routes |
"""
