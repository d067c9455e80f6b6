"""`braid generate`: deployment files."""

import click

from braidlog.cli import LazyGroup

_FILES = "braidlog.cli.generate.files"


@click.group(
    cls=LazyGroup,
    lazy={
        "systemd": (f"{_FILES}:systemd_", "Print a systemd unit."),
        "k8s": (f"{_FILES}:k8s", "Print Kubernetes manifests."),
        "compose": (f"{_FILES}:compose_", "Print a Compose file."),
        "prometheus": (f"{_FILES}:prometheus_", "Print a Prometheus scrape configuration or alerting rules."),
        "grafana": (f"{_FILES}:grafana", "Print a Grafana dashboard."),
    },
)
def generate() -> None:
    """Print deployment files on standard output; nothing is installed."""
