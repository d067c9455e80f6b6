"""What a node reports about itself: metrics, health checks and the snapshot that its console reads.

`node_report.py` declares the snapshot. `metrics.py` is the table of all metrics; `prometheus_text.py` writes it as text.
"""
