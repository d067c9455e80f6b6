"""Files that other systems run braidlog with: systemd, Kubernetes, Compose, Prometheus."""
