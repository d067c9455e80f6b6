"""Access control: users, tokens, rules."""
