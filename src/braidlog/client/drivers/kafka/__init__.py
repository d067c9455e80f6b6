"""The kafka driver: `driver.py` is the port, the others are what it is made of.

Knows: how a client of Kafka behaves. Refuses to know: sockets, retries, threads.
"""

from braidlog.client.drivers.kafka.driver import KafkaDriver

__all__ = ["KafkaDriver"]
