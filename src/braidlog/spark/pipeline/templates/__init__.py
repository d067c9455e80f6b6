"""Project templates for `braid pipeline init`.

Existing files are never overwritten.
"""

from importlib.resources import files
from pathlib import Path
from typing import Final

from braidlog.spark.pipeline import config
from braidlog.spark.pipeline.config import FILE_NAME, Pipeline, Report, Source, State, refusal
from braidlog.spark.pipeline.project import FLOWS, TESTS


def _tests(*stages: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}/first/{name}.jsonl" for name in ("records", *stages))


TEMPLATES: Final = {
    "events": (FILE_NAME, "transforms/enrich.sql", "transforms/tidy.py", *_tests("silver", "dead-letters", "windows")),
    "sdp": (FILE_NAME, "spark-pipeline.yml", "definitions/layers.py", *_tests("silver", "dead_letters", "windows")),
    "wire-log": (FILE_NAME,),
}
_DEFAULTS: Final = {"@KAFKA@": Source(()).servers, "@KEYS@": State("").servers, "@ADMIN@": Report().admin}


def write(template: str, folder: Path, name: str) -> list[Path]:
    """Create a project; return its files."""
    home = files(__name__) / template
    made = {
        folder / each: _filled(home.joinpath(each).read_text(encoding="utf-8"), folder, name)
        for each in TEMPLATES[template]
    }
    config.parse(made[folder / FILE_NAME])  # refuses an invalid name
    if taken := [str(path) for path in made if path.exists()]:
        raise refusal(f"{taken[0]} exists already; nothing was written")
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(made)


def _filled(text: str, folder: Path, name: str) -> str:
    flows = (folder.resolve() / Pipeline(name).storage / FLOWS).as_uri()
    for mark, value in {"@NAME@": name, "@FLOWS@": flows, **_DEFAULTS}.items():
        text = text.replace(mark, value)
    return text
