"""Users, access rules, tokens and quotas.

authorize.require(principal, Operation.WRITE, Resource.topic("orders"))   # authorization.py
"""
