"""`braid generate`: files that others run a node with.

Knows: names of commands. Refuses to know: anything that would have to be imported for it.
"""

import click

from braidlog.cli import LazyGroup

_FILES = "braidlog.cli.generate.files"


@click.group(
    cls=LazyGroup,
    lazy={
        "systemd": (f"{_FILES}:systemd_", "A systemd unit."),
        "k8s": (f"{_FILES}:k8s", "A StatefulSet, a Service and a Secret for Kubernetes."),
        "compose": (f"{_FILES}:compose_", "A Compose file: a node in a container."),
        "prometheus": (f"{_FILES}:prometheus_", "What Prometheus needs to collect figures and to alert."),
        "grafana": (f"{_FILES}:grafana", "A dashboard for Grafana."),
    },
)
def generate() -> None:
    """Print files that others run a node with. They go to standard output; nothing is installed."""
