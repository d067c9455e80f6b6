"""Wire tools: write bytes by hand, watch a conversation, take it apart, break it on purpose. For all six dialects.

    annotated.py script.py matching.py    annotated hex: bytes as a person writes them, and answers that are expected
    sending.py                            `braid wire send`
    seen.py watcher.py                    bytes of both sides become messages, with secrets hidden
    shown.py transcript.py recorder.py    the log of a wire, written and read back
    tapping.py                            `braid wire tap`: a proxy that logs, splits and delays
    decoding.py pcapng.py                 `braid wire decode`, captures
    dissector.py                          a dissector for Wireshark, generated from the dialects' tables
    fuzzing.py                            `braid wire fuzz`

Knows: the dialects' tables and readers. Refuses to know: brokers, services, logs on disk.
"""
