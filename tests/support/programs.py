"""Modules of ``support`` that run in a process of their own, so that their memory can be measured or limited."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


def answer_of(module: str, *words: object, seconds: float = 280) -> Any:
    """The JSON document that a module prints, and None where it prints nothing."""
    places = [str(TESTS), str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout or "null")
