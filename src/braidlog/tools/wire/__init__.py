"""Wire tools for all six dialects: send annotated hex, record, decode and fuzz conversations.

annotated.py script.py matching.py    annotated hex: bytes to send, and expected answers
sending.py                            `braid wire send`
seen.py watcher.py                    decode bytes of both sides to messages, with secrets hidden
shown.py transcript.py recorder.py    write and read wire logs
tapping.py                            `braid wire tap`: a proxy that logs, splits and delays
decoding.py pcapng.py                 `braid wire decode`, captures
dissector.py                          a Wireshark dissector, generated from the dialects' tables
fuzzing.py                            `braid wire fuzz`

"""
