"""Offline tools: inspect, verify and repair a data folder.

Only `repair` changes a data folder, and only while it holds the folder's lock. Does not handle: terminals (`cli`).
"""
