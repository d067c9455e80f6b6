"""The store as a dictionary: what each operation must give, written down without looking at how the store does it."""

from typing import Any

from braidlog.kv.engine import operations as o
from braidlog.model.errors import Reason

Kept = bytes | list[bytes] | dict[bytes, bytes]


class Model:
    """`execute` gives the result, or the `Reason` of the refusal. Memory has no end here."""

    def __init__(self) -> None:
        self.data: dict[bytes, tuple[Kept, int]] = {}

    def expire(self, now_ms: int) -> None:
        self.data = {key: kept for key, kept in self.data.items() if not kept[1] or kept[1] > now_ms}

    def execute(self, operation: o.Operation[Any], now_ms: int) -> Any:  # noqa: C901, PLR0911, PLR0912
        if not operation.key:
            return Reason.INVALID_KEY
        if len(operation.key) > 256:
            return Reason.KEY_TOO_LONG
        self.expire(now_ms)
        key = operation.key
        value, deadline = self.data.get(key, (None, 0))
        match operation:
            case o.Exists():
                return value is not None
            case o.Set():
                if len(operation.value) > 65536:
                    return Reason.VALUE_TOO_LARGE
                wanted = {o.Only.ALWAYS: True, o.Only.IF_ABSENT: value is None, o.Only.IF_PRESENT: value is not None}
                if not wanted[operation.only]:
                    return False
                self.data[key] = (
                    operation.value,
                    now_ms + operation.ttl_seconds * 1000 if operation.ttl_seconds else 0,
                )
                return True
            case o.Increment():
                return self._increment(key, value, deadline, operation.amount)
            case o.Push():
                if value is not None and not isinstance(value, list):
                    return Reason.WRONG_TYPE
                items = list(value or [])
                for item in operation.values:
                    items.insert(0 if operation.end is o.End.LEFT else len(items), item)
                self.data[key] = (items, deadline)
                return len(items)
            case o.HashSet():
                if value is not None and not isinstance(value, dict):
                    return Reason.WRONG_TYPE
                fields = {**(value or {}), **dict(operation.fields)}
                self.data[key] = (fields, deadline)
                return len(fields) - len(value or {})
        if value is None:
            return Reason.KEY_NOT_FOUND
        match operation:
            case o.Delete():
                del self.data[key]
                return None
            case o.Expire():
                self.data[key] = (value, now_ms + operation.ttl_seconds * 1000 if operation.ttl_seconds else 0)
                return None
            case o.TimeToLive():
                return -(-(deadline - now_ms) // 1000) if deadline else 0
            case o.Get():
                return value if isinstance(value, bytes) else Reason.WRONG_TYPE
            case o.Pop() | o.ListRange() | o.ListLength():
                return self._of_list(operation, value, deadline) if isinstance(value, list) else Reason.WRONG_TYPE
            case o.HashGet() | o.HashDelete() | o.HashGetAll():
                return self._of_hash(operation, value, deadline) if isinstance(value, dict) else Reason.WRONG_TYPE
        raise AssertionError(operation)

    def _increment(self, key: bytes, value: Kept | None, deadline: int, amount: int) -> int | Reason:
        if value is not None and not isinstance(value, bytes):
            return Reason.WRONG_TYPE
        try:
            number = int(value) if value is not None else 0
        except ValueError:
            return Reason.NOT_A_NUMBER
        if (value is not None and str(number).encode() != value) or abs(number) > 2**63:
            return Reason.NOT_A_NUMBER
        if not -(2**63) <= number + amount < 2**63:
            return Reason.NUMBER_OVERFLOW
        self.data[key] = (str(number + amount).encode(), deadline)
        return number + amount

    def _of_list(self, operation: Any, value: list[bytes], deadline: int) -> Any:
        match operation:
            case o.ListLength():
                return len(value)
            case o.ListRange():
                first = operation.first + (len(value) if operation.first < 0 else 0)
                last = operation.last + (len(value) if operation.last < 0 else 0)
                return [item for place, item in enumerate(value) if first <= place <= last]
        items = list(value)
        taken = items.pop(0 if operation.end is o.End.LEFT else -1)
        self._keep(operation.key, items, deadline)
        return taken

    def _of_hash(self, operation: Any, value: dict[bytes, bytes], deadline: int) -> Any:
        match operation:
            case o.HashGetAll():
                return value
            case o.HashGet():
                return value.get(operation.field, Reason.KEY_NOT_FOUND)
        left = {field: kept for field, kept in value.items() if field not in operation.fields}
        if len(left) == len(value):
            return Reason.KEY_NOT_FOUND
        self._keep(operation.key, left, deadline)
        return len(value) - len(left)

    def _keep(self, key: bytes, value: Kept, deadline: int) -> None:
        if value:
            self.data[key] = (value, deadline)
        else:
            del self.data[key]
