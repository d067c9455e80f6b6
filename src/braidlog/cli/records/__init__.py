"""`braid produce`, `consume`, `tail`: records in and out, and how they look as text."""
