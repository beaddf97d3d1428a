"""The code on the page that documents the format, so that tests hold the package to what is written there."""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def example(start: str, **replaced: str) -> dict[str, Any]:
    """The names that a code block of the page defines, after some of its text is replaced.

    Args:
        start: what the block starts with.
        replaced: text of the block by the name of the variable that it is assigned to; takes its place.
    """
    (block,) = (part.split("```")[0] for part in PAGE.read_text().split("```python\n")[1:] if part.startswith(start))
    lines = block.splitlines()
    for name, value in replaced.items():
        (place,) = (number for number, line in enumerate(lines) if line.startswith(f"{name} = "))
        lines[place] = f"{name} = {value!r}"
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    return names
