"""Foreign clients, none of which says of what types its names are.

Importing kafka-python warns of its own use of a deprecated call; no concern of ours.
"""

import importlib
import warnings
from typing import Any

_rd: Any = importlib.import_module("confluent_kafka")
_rd_admin: Any = importlib.import_module("confluent_kafka.admin")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    _aio: Any = importlib.import_module("aiokafka")
    _python: Any = importlib.import_module("kafka")
    _python_consumer: Any = importlib.import_module("kafka.protocol.consumer.metadata")

Consumer: Any = _rd.Consumer
ConsumerGroupTopicPartitions: Any = _rd.ConsumerGroupTopicPartitions
ConsumerGroupType: Any = _rd.ConsumerGroupType
KafkaException: Any = _rd.KafkaException
Producer: Any = _rd.Producer
TopicPartition: Any = _rd.TopicPartition
AclBinding: Any = _rd_admin.AclBinding
AclBindingFilter: Any = _rd_admin.AclBindingFilter
AclOperation: Any = _rd_admin.AclOperation
AclPermissionType: Any = _rd_admin.AclPermissionType
AdminClient: Any = _rd_admin.AdminClient
AlterConfigOpType: Any = _rd_admin.AlterConfigOpType
ConfigEntry: Any = _rd_admin.ConfigEntry
ConfigResource: Any = _rd_admin.ConfigResource
NewPartitions: Any = _rd_admin.NewPartitions
NewTopic: Any = _rd_admin.NewTopic
ResourcePatternType: Any = _rd_admin.ResourcePatternType
ResourceType: Any = _rd_admin.ResourceType
ScramCredentialInfo: Any = _rd_admin.ScramCredentialInfo
ScramMechanism: Any = _rd_admin.ScramMechanism
UserScramCredentialDeletion: Any = _rd_admin.UserScramCredentialDeletion
UserScramCredentialUpsertion: Any = _rd_admin.UserScramCredentialUpsertion
AIOKafkaConsumer: Any = _aio.AIOKafkaConsumer
AIOKafkaProducer: Any = _aio.AIOKafkaProducer
KafkaAdminClient: Any = _python.KafkaAdminClient
KafkaConsumer: Any = _python.KafkaConsumer
KafkaProducer: Any = _python.KafkaProducer
ConsumerProtocolAssignment: Any = _python_consumer.ConsumerProtocolAssignment
ConsumerProtocolSubscription: Any = _python_consumer.ConsumerProtocolSubscription
