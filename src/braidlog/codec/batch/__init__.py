"""Record batches: header, records section, checksum, compression.

    batch = encode_batch([b"value"], base_timestamp=now_ms)   # records.py
    header = read_header(batch)                              # header.py
    records = decode_batch(batch)

`kernel.py` and `rows.py` are compiled where a C compiler is installed; `kernel_python.py` defines the kernel's results.
"""
