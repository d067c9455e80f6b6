"""Foreign clients. Importing kafka-python warns of its own use of a deprecated call, and its threads leave sockets to the
garbage collector; no concern of ours.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

__all__ = [
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "ConsumerProtocolAssignment",
    "ConsumerProtocolSubscription",
    "KafkaAdminClient",
    "KafkaConsumer",
    "KafkaProducer",
]
