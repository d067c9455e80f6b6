"""The kafka driver: `driver.py` implements the port with the other modules.

Does not handle: sockets, retries, threads.
"""

from braidlog.client.drivers.kafka.driver import KafkaDriver

__all__ = ["KafkaDriver"]
