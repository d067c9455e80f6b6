"""`python -m braidlog.cli`: the same as `braid`."""

from braidlog.cli import main

main(prog_name="braid")
