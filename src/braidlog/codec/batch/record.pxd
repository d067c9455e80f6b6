"""The bytes of one record, in C: what the compiled modules of this folder share.

Every function is inlined into the modules that cimport it; without a compiler this file is not read. All reading of
foreign bytes is here, and each reader compares with the end before each byte. The fields are drawn in section.py.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy

# One record as `next_record` found it. Pointers into the section; a length of -1 is null.
cdef struct Span:
    long long timestamp_delta
    long long offset_delta
    unsigned char* key
    long long key_length
    unsigned char* value
    long long value_length
    unsigned char* headers
    long long header_count

cdef struct HeaderSpan:
    unsigned char* name
    long long name_length
    unsigned char* value
    long long value_length


# ---------------------------------------------------------------------------------------------------- reading

cdef inline long long unzigzag(unsigned long long value) noexcept:
    return <long long> (value >> 1) ^ -<long long> (value & 1)


cdef inline unsigned char* _varint_slow(
    unsigned char* p, unsigned char* end, int bytes_max, unsigned int last_max, long long* out
) noexcept:
    """Any varint of at most `bytes_max` bytes; NULL when it is cut off, too long or too wide."""
    cdef unsigned long long value = 0
    cdef unsigned long long byte
    cdef int index
    for index in range(bytes_max):
        if p >= end:
            return NULL
        byte = p[0]
        p += 1
        if index == bytes_max - 1 and byte > last_max:
            return NULL
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            out[0] = unzigzag(value)
            return p
    return NULL


cdef inline unsigned char* _varint_short(unsigned char* p, unsigned char* end, long long* out) noexcept:
    """One byte or two bytes, nearly all there are, without a loop; NULL when it is anything else."""
    cdef unsigned int value
    if end - p >= 2:
        value = p[0]
        if value < 0x80:
            out[0] = unzigzag(value)
            return p + 1
        if p[1] < 0x80:
            out[0] = unzigzag((value & 0x7F) | (<unsigned int> p[1] << 7))
            return p + 2
    return NULL


cdef inline unsigned char* read_varint(unsigned char* p, unsigned char* end, long long* out) noexcept:
    """A 32-bit varint."""
    cdef unsigned char* found = _varint_short(p, end, out)
    return found if found != NULL else _varint_slow(p, end, 5, 0x0F, out)


cdef inline unsigned char* read_varlong(unsigned char* p, unsigned char* end, long long* out) noexcept:
    cdef unsigned char* found = _varint_short(p, end, out)
    return found if found != NULL else _varint_slow(p, end, 10, 0x01, out)


cdef inline unsigned char* _read_bytes(
    unsigned char* p, unsigned char* end, unsigned char** start, long long* length
) noexcept:
    """Bytes with their length before them; the position after them, NULL when they do not fit."""
    p = read_varint(p, end, length)
    if p == NULL or length[0] < -1 or length[0] > end - p:
        return NULL
    start[0] = p
    return p + length[0] if length[0] > 0 else p


cdef inline bint is_utf8(unsigned char* p, long long length) noexcept:
    cdef long long index
    for index in range(length):
        if p[index] >= 0x80:
            try:
                PyUnicode_DecodeUTF8(<char*> p, length, NULL)
            except UnicodeDecodeError:
                return False
            return True
    return True


cdef inline unsigned char* next_header(unsigned char* p, unsigned char* end, HeaderSpan* header) noexcept:
    """The position after the header at `p`; NULL when it does not fit. Whether its name is UTF-8 is not looked at."""
    p = _read_bytes(p, end, &header.name, &header.name_length)
    if p == NULL or header.name_length < 0:
        return NULL
    return _read_bytes(p, end, &header.value, &header.value_length)


cdef inline unsigned char* _skip_headers(unsigned char* p, unsigned char* end, long long count) noexcept:
    """The position after `count` headers, each checked; NULL when one is malformed."""
    cdef HeaderSpan header
    cdef long long index
    for index in range(count):
        p = next_header(p, end, &header)
        if p == NULL or not is_utf8(header.name, header.name_length):
            return NULL
    return p


cdef inline bint leaves_64_bits(long long base, long long delta) noexcept:
    if delta >= 0:
        return base > <long long> 0x7FFFFFFFFFFFFFFF - delta
    return base < -<long long> 0x7FFFFFFFFFFFFFFF - 1 - delta


cdef inline unsigned char* next_record(
    unsigned char* p, unsigned char* end, long long last_offset_delta, long long base_timestamp, Span* span
) noexcept:
    """Fill `span` from the record at `p`; the position after it, NULL when it breaks a rule.

    `span` holds the record before it: offset deltas rise. Before the first record its offset delta is -1.
    """
    cdef long long length = 0
    cdef long long before = span.offset_delta
    cdef unsigned char* stop
    p = read_varint(p, end, &length)
    if p == NULL or length < 6 or length > end - p:
        return NULL
    stop = p + length
    p = read_varlong(p + 1, stop, &span.timestamp_delta)
    if p == NULL or leaves_64_bits(base_timestamp, span.timestamp_delta):
        return NULL
    p = read_varint(p, stop, &span.offset_delta)
    if p == NULL or span.offset_delta <= before or span.offset_delta > last_offset_delta:
        return NULL
    p = _read_bytes(p, stop, &span.key, &span.key_length)
    if p == NULL:
        return NULL
    p = _read_bytes(p, stop, &span.value, &span.value_length)
    if p == NULL:
        return NULL
    p = read_varint(p, stop, &length)
    if p == NULL or length < 0 or length > (stop - p) >> 1:
        return NULL
    span.headers = p
    span.header_count = length
    if length > 0:
        p = _skip_headers(p, stop, length)
    # What follows is found by the length alone, which the processor reads ahead of everything in between.
    return stop if p == stop else NULL


# ---------------------------------------------------------------------------------------------------- writing

cdef extern from "Python.h":
    PyObject* new_bytes "PyBytes_FromStringAndSize" (const char* data, Py_ssize_t size) except NULL
    int _resize_bytes "_PyBytes_Resize" (PyObject** made, Py_ssize_t size) except -1
    char* _bytes_text "PyBytes_AS_STRING" (PyObject* made) noexcept


cdef inline unsigned char* bytes_start(PyObject* made) noexcept:
    return <unsigned char*> _bytes_text(made)


cdef inline bytes bytes_cut(PyObject* made, Py_ssize_t size):
    """What `new_bytes` made, which nobody else has seen yet, with so many bytes of it."""
    _resize_bytes(&made, size)
    cdef bytes cut = <bytes> made
    Py_DECREF(cut)
    return cut



cdef inline unsigned long long zigzag(long long value) noexcept:
    return (<unsigned long long> value << 1) ^ <unsigned long long> (value >> 63)


cdef inline long long varint_size(long long value) noexcept:
    cdef unsigned long long u = zigzag(value)
    cdef long long size = 1
    while u >= 0x80:
        u >>= 7
        size += 1
    return size


cdef inline unsigned char* put_varint(unsigned char* p, long long value) noexcept:
    cdef unsigned long long u = zigzag(value)
    while u >= 0x80:
        p[0] = <unsigned char> (u | 0x80)
        u >>= 7
        p += 1
    p[0] = <unsigned char> u
    return p + 1


cdef inline long long bytes_size(long long length) noexcept:
    """What bytes of that length take with the length before them; -1 is null."""
    return varint_size(length) + (length if length > 0 else 0)


cdef inline unsigned char* put_bytes(unsigned char* p, const void* data, long long length) noexcept:
    p = put_varint(p, length)
    if length > 0:
        memcpy(p, data, length)
        p += length
    return p


cdef inline void copy_short(
    unsigned char* to, unsigned char* to_end, unsigned char* data, unsigned char* data_end, long long length
) noexcept:
    """Copy bytes that are mostly few: where both sides have the room, a fixed number of them and no call. What is written behind
    `length` is overwritten next, or cut off."""
    if length <= 16 and to_end - to >= 16 and data_end - data >= 16:
        memcpy(to, data, 16)
    elif length > 0:
        memcpy(to, data, length)


cdef inline unsigned char* put_i64(unsigned char* p, long long value) noexcept:
    """In the machine's own order, wherever `p` stands."""
    memcpy(p, &value, 8)
    return p + 8


cdef inline unsigned char* put_i32(unsigned char* p, long long value) noexcept:
    cdef int narrow = <int> value
    memcpy(p, &narrow, 4)
    return p + 4


cdef inline long long get_big(unsigned char* p, int size) noexcept:
    """A signed number of 2, 4 or 8 bytes, the highest first."""
    cdef unsigned long long value = 0
    cdef int index
    for index in range(size):
        value = (value << 8) | p[index]
    return <long long> (value << (64 - 8 * size)) >> (64 - 8 * size)


cdef inline void put_big(unsigned char* p, long long value, int size) noexcept:
    cdef int index
    for index in range(size):
        p[index] = <unsigned char> (value >> (8 * (size - 1 - index)))


cdef inline int get_i32(unsigned char* p) noexcept:
    cdef int value
    memcpy(&value, p, 4)
    return value


cdef inline long long body_size(
    long long timestamp_delta, long long offset_delta, long long key, long long value, long long headers
) noexcept:
    """What a record's own length field says; `headers` are the bytes of its headers with their count."""
    return (
        1 + varint_size(timestamp_delta) + varint_size(offset_delta) + bytes_size(key) + bytes_size(value) + headers
    )


cdef inline unsigned char* put_head(
    unsigned char* p, long long body, long long timestamp_delta, long long offset_delta
) noexcept:
    """The fields before the key."""
    p = put_varint(p, body)
    p[0] = 0
    p = put_varint(p + 1, timestamp_delta)
    return put_varint(p, offset_delta)
