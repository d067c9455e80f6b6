"""The program etcd, for nodes of a braidlog cluster that run a member beside themselves."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("etcd")
