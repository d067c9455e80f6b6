"""What the tools print as JSON, held against docs/schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).parents[2] / "docs/schemas"


def check(name: str, value: Any) -> None:
    jsonschema.validate(value, json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
