"""Leave with 0 when a part of Airflow is well: ``python healthy.py scheduler``.

The api-server knows each part's last heartbeat. Asking it costs a fraction of what ``airflow jobs check`` does, which
loads all of Airflow each time.
"""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen


def main() -> int:
    """Ask the server that the second argument names, else the one of the compose file."""
    part, *server = sys.argv[1:]
    url = f"{server[0] if server else 'http://api-server:8080'}/api/v2/monitor/health"
    with urlopen(url, timeout=5) as answer:  # noqa: S310 - http, as it is written here
        status = (json.load(answer).get(part) or {}).get("status")
    print(f"{part} is {status}")
    return 0 if status == "healthy" else 1


if __name__ == "__main__":
    sys.exit(main())
