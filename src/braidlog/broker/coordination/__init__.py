"""Coordinators of groups, transactions and named producers: which node runs each, and how requests reach it."""
