"""The client for asyncio: `async with braidlog.aio.connect("rustlog://127.0.0.1:9096") as client: ...`

Knows: nothing; it is the short name of what `braidlog.client` has. The same names, blocking: `braidlog.connect`.
"""

from braidlog.client.drivers.contract import Acks, Capabilities, ConsumedRecord, GroupInfo, Placed, Setting, Span
from braidlog.client.engine.admin import Admin, PartitionLag, TopicInfo
from braidlog.client.engine.consumer import Consumer
from braidlog.client.engine.delivery import Delivery, Retries
from braidlog.client.engine.metrics import ConsumerMetrics, ProducerMetrics
from braidlog.client.engine.producer import Producer
from braidlog.client.engine.transaction import Transaction
from braidlog.client.session import Client, connect

__all__ = [
    "Acks",
    "Admin",
    "Capabilities",
    "Client",
    "ConsumedRecord",
    "Consumer",
    "ConsumerMetrics",
    "Delivery",
    "GroupInfo",
    "PartitionLag",
    "Placed",
    "Producer",
    "ProducerMetrics",
    "Retries",
    "Setting",
    "Span",
    "TopicInfo",
    "Transaction",
    "connect",
]
