"""Spark finds the formats by the names of their modules, and a module without its extra is no harm to the others."""

import subprocess
import sys
from pathlib import Path

FORMATS = sorted(each.name for each in (Path(__file__).parents[2] / "src").glob("pyspark_*"))


def test_without_pyspark_there_is_nothing_and_no_error() -> None:
    for name in FORMATS:
        program = f"import sys; sys.modules['pyspark'] = None; import {name}; print(hasattr({name}, 'DefaultSource'))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
        assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr


def test_importing_the_session_helper_does_not_cost_pyspark() -> None:
    program = "import sys, braidlog.spark; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "False"]
