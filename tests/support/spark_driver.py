"""A Spark driver of its own that runs code which it is sent: one JSON text a line in, one a line out.

It needs pyspark alone, because it runs in an environment where lakeops is not.
"""

import json
import os
import sys


def main() -> None:
    """Answer until the input ends. ``value`` is what the code calls so, and ``error`` what went wrong."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Spark prints is no answer
    from pyspark.sql import SparkSession

    names = {"spark": SparkSession.builder.getOrCreate()}
    for line in sys.stdin:
        names.pop("value", None)
        try:
            exec(json.loads(line), names)
            answer = {"value": names.get("value"), "error": ""}
        except Exception as error:
            answer = {"value": None, "error": str(error)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
