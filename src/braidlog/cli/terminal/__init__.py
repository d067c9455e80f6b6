"""What all commands share: how to reach a node, how answers look, times as people type them, Ctrl-C."""
