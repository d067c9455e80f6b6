"""Golden vectors: a comment a line, a `Source:` line, and bytes in hex with comments after `#`."""

from pathlib import Path

FOLDER = Path(__file__).parent


def read_vector(name: str) -> bytes:
    lines = (FOLDER / name).read_text().splitlines()
    assert sum(line.startswith("Source: ") for line in lines) == 1, f"{name} does not say where it is from"
    return bytes.fromhex(" ".join(line.split("#")[0] for line in lines if not line.startswith("Source: ")))
