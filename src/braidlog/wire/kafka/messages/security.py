"""Authentication, ACLs, SCRAM credentials and client quotas. `rows.py` explains the rows."""

from typing import Annotated

from braidlog.wire.kafka.messages.parts import Outcome, Throttled, ThrottledOutcome
from braidlog.wire.kafka.rows import F64, I8, I16, I32, I64, Bool, Bytes, Message, Text


class SaslHandshakeRequest(Message, frozen=True):
    mechanism: Text = ""


class SaslHandshakeResponse(Message, frozen=True):
    error_code: I16 = 0
    mechanisms: list[Text] = []


class SaslAuthenticateRequest(Message, frozen=True):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Outcome, frozen=True):
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[I64, "1+"] = 0


class AclFilter(Message, frozen=True):
    resource_type_filter: I8 = 0
    resource_name_filter: Text | None = ""
    pattern_type_filter: I8 = 3
    principal_filter: Text | None = ""
    host_filter: Text | None = ""
    operation: I8 = 0
    permission_type: I8 = 0


class DescribeAclsRequest(AclFilter, frozen=True):
    pass


class DescribeAclsResponseAcl(Message, frozen=True):
    principal: Text = ""
    host: Text = ""
    operation: I8 = 0
    permission_type: I8 = 0


class DescribeAclsResponseResource(Message, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    pattern_type: I8 = 3
    acls: list[DescribeAclsResponseAcl] = []


class DescribeAclsResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
    resources: list[DescribeAclsResponseResource] = []


class CreateAclsRequestCreation(Message, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    resource_pattern_type: I8 = 3
    principal: Text = ""
    host: Text = ""
    operation: I8 = 0
    permission_type: I8 = 0


class CreateAclsRequest(Message, frozen=True):
    creations: list[CreateAclsRequestCreation] = []


class CreateAclsResponse(Throttled, frozen=True):
    results: list[Outcome] = []


class DeleteAclsRequest(Message, frozen=True):
    filters: list[AclFilter] = []


class DeleteAclsResponseAcl(Outcome, frozen=True):
    resource_type: I8 = 0
    resource_name: Text = ""
    pattern_type: I8 = 3
    principal: Text = ""
    host: Text = ""
    operation: I8 = 0
    permission_type: I8 = 0


class DeleteAclsResponseResult(Outcome, frozen=True):
    matching_acls: list[DeleteAclsResponseAcl] = []


class DeleteAclsResponse(Throttled, frozen=True):
    filter_results: list[DeleteAclsResponseResult] = []


class DescribeUserScramCredentialsRequestUser(Message, frozen=True):
    name: Text = ""


class DescribeUserScramCredentialsRequest(Message, frozen=True):
    users: list[DescribeUserScramCredentialsRequestUser] | None = []


class DescribeUserScramCredentialsResponseCredentialInfo(Message, frozen=True):
    mechanism: I8 = 0
    iterations: I32 = 0


class DescribeUserScramCredentialsResponseResult(Message, frozen=True):
    user: Text = ""
    error_code: I16 = 0
    error_message: Text | None = None
    credential_infos: list[DescribeUserScramCredentialsResponseCredentialInfo] = []


class DescribeUserScramCredentialsResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = None
    results: list[DescribeUserScramCredentialsResponseResult] = []


class AlterUserScramCredentialsRequestDeletion(Message, frozen=True):
    name: Text = ""
    mechanism: I8 = 0


class AlterUserScramCredentialsRequestUpsertion(Message, frozen=True):
    name: Text = ""
    mechanism: I8 = 0
    iterations: I32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(Message, frozen=True):
    deletions: list[AlterUserScramCredentialsRequestDeletion] = []
    upsertions: list[AlterUserScramCredentialsRequestUpsertion] = []


class AlterUserScramCredentialsResponseResult(Message, frozen=True):
    user: Text = ""
    error_code: I16 = 0
    error_message: Text | None = None


class AlterUserScramCredentialsResponse(Throttled, frozen=True):
    results: list[AlterUserScramCredentialsResponseResult] = []


class DescribeClientQuotasRequestComponent(Message, frozen=True):
    entity_type: Text = ""
    match_type: I8 = 0
    match: Text | None = ""


class DescribeClientQuotasRequest(Message, frozen=True):
    components: list[DescribeClientQuotasRequestComponent] = []
    strict: Bool = False


class QuotaEntity(Message, frozen=True):
    entity_type: Text = ""
    entity_name: Text | None = ""


class DescribeClientQuotasResponseValue(Message, frozen=True):
    key: Text = ""
    value: F64 = 0.0


class DescribeClientQuotasResponseEntry(Message, frozen=True):
    entity: list[QuotaEntity] = []
    values: list[DescribeClientQuotasResponseValue] = []


class DescribeClientQuotasResponse(ThrottledOutcome, frozen=True):
    error_message: Text | None = ""
    entries: list[DescribeClientQuotasResponseEntry] | None = []


class AlterClientQuotasRequestOp(Message, frozen=True):
    key: Text = ""
    value: F64 = 0.0
    remove: Bool = False


class AlterClientQuotasRequestEntry(Message, frozen=True):
    entity: list[QuotaEntity] = []
    ops: list[AlterClientQuotasRequestOp] = []


class AlterClientQuotasRequest(Message, frozen=True):
    entries: list[AlterClientQuotasRequestEntry] = []
    validate_only: Bool = False


class AlterClientQuotasResponseEntry(Outcome, frozen=True):
    entity: list[QuotaEntity] = []


class AlterClientQuotasResponse(Throttled, frozen=True):
    entries: list[AlterClientQuotasResponseEntry] = []
