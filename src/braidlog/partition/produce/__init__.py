"""The produce path of a partition: validation, append, acknowledgement.

written = await append.write(topic, partition, batches, acks=Acks.ALL)   # append.py
"""
