"""The key-value client for programs without an event loop: `with braidlog.kv.connect("mayfly://127.0.0.1:7275") as store: ...`

Every method is derived from the asyncio client's (`facade.py`); the thread behind it ends with the client.
"""

from braidlog.client.facade import ConnectionFacade, blocking, connected
from braidlog.client.kv import client as kv


class KeyValue(ConnectionFacade[kv.KeyValue]):
    """A key-value store; every call waits for its answer."""

    do = blocking(kv.KeyValue.do)
    run = blocking(kv.KeyValue.run)
    set = blocking(kv.KeyValue.set)
    get = blocking(kv.KeyValue.get)
    delete = blocking(kv.KeyValue.delete)
    exists = blocking(kv.KeyValue.exists)
    expire = blocking(kv.KeyValue.expire)
    ttl = blocking(kv.KeyValue.ttl)
    scan = blocking(kv.KeyValue.scan)
    lpush = blocking(kv.KeyValue.lpush)
    rpush = blocking(kv.KeyValue.rpush)
    lpop = blocking(kv.KeyValue.lpop)
    rpop = blocking(kv.KeyValue.rpop)
    lrange = blocking(kv.KeyValue.lrange)
    llen = blocking(kv.KeyValue.llen)
    incr = blocking(kv.KeyValue.incr)
    hset = blocking(kv.KeyValue.hset)
    hget = blocking(kv.KeyValue.hget)
    hdel = blocking(kv.KeyValue.hdel)
    hgetall = blocking(kv.KeyValue.hgetall)
    ping = blocking(kv.KeyValue.ping)
    stats = blocking(kv.KeyValue.stats)
    memory = blocking(kv.KeyValue.memory)
    snapshot = blocking(kv.KeyValue.snapshot)


connect = connected(kv.KeyValue, KeyValue)
