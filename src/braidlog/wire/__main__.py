"""`python -m braidlog.wire`: the names of all dialects, for scripts."""

import sys

from braidlog.wire.dialect import dialects

sys.stdout.writelines(f"{name}\n" for name in dialects())
