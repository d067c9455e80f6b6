"""Wire tools: write bytes by hand, watch a conversation, take it apart, break it on purpose. For all six dialects.

    annotated_hex.py script.py answer_matching.py    annotated hex: bytes as a person writes them, and answers that are expected
    script_runner.py                            `braid wire send`
    observed_message.py observed_connection.py                    bytes of both sides become messages, with secrets hidden
    message_format.py transcript.py recorder.py    the log of a wire, written and read back
    proxy.py                            `braid wire tap`: a proxy that logs, splits and delays
    decoder.py pcapng.py                 `braid wire decode`, captures
    dissector.py                          a dissector for Wireshark, generated from the dialects' tables
    fuzzer.py                            `braid wire fuzz`

Knows: the dialects' tables and readers. Refuses to know: brokers, services, logs on disk.
"""
