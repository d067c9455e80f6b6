"""`braid produce`, `consume`, `tail`: write and read records as text."""
