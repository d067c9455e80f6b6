"""Who somebody is, and what they may do.

Knows: rows (`rows.py` says how to read one). Refuses to know: bytes, and what serving a request means.
"""

from typing import Annotated

from braidlog.wire.kafka.rows import I8, I16, I32, I64, Bytes, Message, Text


class SaslHandshakeRequest(Message, frozen=True):
    mechanism: Text = ""


class SaslHandshakeResponse(Message, frozen=True):
    error_code: I16 = 0
    mechanisms: list[Text] = []


class SaslAuthenticateRequest(Message, frozen=True):
    auth_bytes: Bytes = b""


class SaslAuthenticateResponse(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[I64, "1+"] = 0


class DescribeAclsRequest(Message, frozen=True):
    resource_type_filter: I8 = 0
    resource_name_filter: Text | None = ""
    pattern_type_filter: I8 = 3
    principal_filter: Text | None = ""
    host_filter: Text | None = ""
    operation: I8 = 0
    permission_type: I8 = 0


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


class DescribeAclsResponse(Message, frozen=True):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
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


class CreateAclsResponseResult(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None


class CreateAclsResponse(Message, frozen=True):
    throttle_time_ms: I32 = 0
    results: list[CreateAclsResponseResult] = []


class DeleteAclsRequestFilter(Message, frozen=True):
    resource_type_filter: I8 = 0
    resource_name_filter: Text | None = ""
    pattern_type_filter: I8 = 3
    principal_filter: Text | None = ""
    host_filter: Text | None = ""
    operation: I8 = 0
    permission_type: I8 = 0


class DeleteAclsRequest(Message, frozen=True):
    filters: list[DeleteAclsRequestFilter] = []


class DeleteAclsResponseAcl(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    resource_type: I8 = 0
    resource_name: Text = ""
    pattern_type: I8 = 3
    principal: Text = ""
    host: Text = ""
    operation: I8 = 0
    permission_type: I8 = 0


class DeleteAclsResponseResult(Message, frozen=True):
    error_code: I16 = 0
    error_message: Text | None = None
    matching_acls: list[DeleteAclsResponseAcl] = []


class DeleteAclsResponse(Message, frozen=True):
    throttle_time_ms: I32 = 0
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


class DescribeUserScramCredentialsResponse(Message, frozen=True):
    throttle_time_ms: I32 = 0
    error_code: I16 = 0
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


class AlterUserScramCredentialsResponse(Message, frozen=True):
    throttle_time_ms: I32 = 0
    results: list[AlterUserScramCredentialsResponseResult] = []
