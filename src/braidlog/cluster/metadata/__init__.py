"""The metadata log: events that nodes agree on, and the image that they add up to.

image.check(event)     # image_checks.py: does it make sense now?
image.apply(event)     # image_changes.py
"""
