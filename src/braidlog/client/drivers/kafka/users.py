"""Users with passwords, by Kafka's requests.

Hashes each password here with a new salt; the server never sees the password. Does not handle: authorization.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from braidlog.client.drivers.kafka.routing import Router, only
from braidlog.client.drivers.kafka.sasl import HASHES
from braidlog.client.drivers.users import MECHANISMS, UserCredential
from braidlog.wire.kafka.codes import ErrorCode as E
from braidlog.wire.kafka.messages import security as s

NUMBERS: Final = {name: number for number, name in enumerate(MECHANISMS, 1)}
_NAMES: Final = {number: name for name, number in NUMBERS.items()}
_SALT_BYTES = 16


class UsersDriver(Router):
    """Lists and changes users by requests to the controller."""

    async def list_users(self, user: str | None = None) -> list[UserCredential]:
        named = None if user is None else [s.DescribeUserScramCredentialsRequestUser(user)]
        answer: s.DescribeUserScramCredentialsResponse = await self.ask_controller(
            s.DescribeUserScramCredentialsRequest(named)
        )
        self.check_code(answer.error_code, answer.error_message)
        for result in answer.results:
            if result.error_code != E.RESOURCE_NOT_FOUND:  # the user has no credentials
                self.check_code(result.error_code, result.error_message)
        return sorted(
            UserCredential(
                result.user,
                _NAMES.get(credential_info.mechanism, str(credential_info.mechanism)),
                credential_info.iterations,
            )
            for result in answer.results
            for credential_info in result.credential_infos
        )

    async def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        upsertions = []
        for mechanism in mechanisms:
            salt = secrets.token_bytes(_SALT_BYTES)
            hashed = HASHES[mechanism], password.encode(), salt, iterations
            salted = await asyncio.to_thread(hashlib.pbkdf2_hmac, *hashed)  # takes a second for a million iterations
            upsertions.append(
                s.AlterUserScramCredentialsRequestUpsertion(user, NUMBERS[mechanism], iterations, salt, salted)
            )
        await self._alter_users(s.AlterUserScramCredentialsRequest(upsertions=upsertions))

    async def delete_user(self, user: str) -> None:
        known = await self.list_users(user)
        if not known:
            raise self.refuse(E.RESOURCE_NOT_FOUND, f"unknown user {user!r}")
        deletions = [s.AlterUserScramCredentialsRequestDeletion(user, NUMBERS[each.mechanism]) for each in known]
        await self._alter_users(s.AlterUserScramCredentialsRequest(deletions=deletions))

    async def _alter_users(self, message: s.AlterUserScramCredentialsRequest) -> None:
        answer: s.AlterUserScramCredentialsResponse = await self.ask_controller(message)
        result = only(answer.results, "AlterUserScramCredentials")
        self.check_code(result.error_code, result.error_message)
