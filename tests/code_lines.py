"""How much code there is: lines that hold a token which is neither comment nor docstring.

`make lines` prints them by folder, the C that the kernels share (.pxd) too.
A docstring is a string that stands as a statement of its own: deleting prose must not look like deleting code.
"""

import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    )
)
_BEGINS_A_STATEMENT = frozenset((tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING))


def code_lines(path: Path) -> int:
    """How many lines of a file hold code."""
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    lines: set[int] = set()
    at_start = True
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type in _NO_CODE:
            at_start = at_start or token.type in _BEGINS_A_STATEMENT
            continue
        is_docstring = at_start and token.type == tokenize.STRING and following.type == tokenize.NEWLINE
        at_start = False
        if not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def by_folder(root: Path = SOURCE) -> Counter[str]:
    """Code lines of each package, and of each folder in it."""
    found: Counter[str] = Counter()
    for path in sorted((*root.rglob("*.py"), *root.rglob("*.pxd"))):
        found["/".join(path.relative_to(root).parts[:2])] += code_lines(path)
    return found


if __name__ == "__main__":
    counted = by_folder()
    for folder, lines in sorted(counted.items()):
        sys.stdout.write(f"{lines:>7,}  {folder}\n")
    sys.stdout.write(f"{counted.total():>7,}  in all\n")
