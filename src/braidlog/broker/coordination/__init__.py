"""Coordinators of groups, transactions and named producers: which node has which, and requests to them."""
