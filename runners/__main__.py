"""``python -m runners``: which commands there are, and what each is for."""

import ast
import sys
from pathlib import Path

_LAST = """\
python -m runners.NAME --help says how each is used; README.md which answers which question.
exit status: 0 listed, 2 the command is wrong"""


def purposes() -> dict[str, str]:
    """The entry points by name, with the first line of their docstrings; nothing is imported."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.stem] = text.partition("\n")[0]
    return found


def listing() -> str:
    """One line an entry point."""
    rows = [f"  python -m runners.{name:8}  {line}" for name, line in purposes().items()]
    return "\n".join(["usage: python -m runners.NAME [...]", "", *rows, "", _LAST])


def main() -> int:
    """List the commands; 2 where more was typed, with what to type instead."""
    words = sys.argv[1:]
    if set(words) <= {"--help", "-h"}:
        print(listing())
        return 0
    known = purposes()
    if words[0] in known:
        cure = f"type python -m runners.{words[0]}, with a dot"
    else:
        cure = f"no such command; python -m runners.NAME takes one of {', '.join(known)}"
    print(f"runners: {words[0]}: {cure}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
