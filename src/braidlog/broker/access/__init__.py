"""Who somebody is and what they may do: users, tokens, rules."""
