"""Run `braid` as `python -m braidlog.cli`."""

from braidlog.cli import main

main(prog_name="braid")
