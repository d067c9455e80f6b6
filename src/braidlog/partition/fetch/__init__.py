"""The fetch path of a partition: find a slice of the log, wait for new records, decode for protocols with other
forms.
"""
