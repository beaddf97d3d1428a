#!/usr/bin/env python3
"""S3's clients that users have: rclone, s3cmd and aws-cli 2 of Debian, aws-cli 1 and s3fs of PyPI.

Debian's are installed where they are missing, which needs root. PyPI's lie in build/, pinned by their SHA-256.
``clients.py COMMAND...`` runs a command with the place in LAKEOPS_TEST_CLIENTS.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

LOCK = Path(__file__).with_name("clients.lock")
PLACE = Path(__file__).parents[2] / "build" / "clients-1"
DEBIAN = {"rclone": "/usr/bin/rclone", "s3cmd": "/usr/bin/s3cmd", "awscli": "/usr/bin/aws"}


def install() -> Path:
    """The environment with PyPI's clients."""
    missing = [package for package, program in DEBIAN.items() if not Path(program).exists()]
    if missing and (os.geteuid() != 0 or not shutil.which("apt-get")):
        sys.exit(f"install the Debian packages {' '.join(missing)} first (this script can do it only as root)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]) if missing else ():
        subprocess.run(["apt-get", "-qq", *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    done = PLACE / "installed"
    if not done.exists():
        print("Installing aws-cli 1 and s3fs ...", file=sys.stderr, flush=True)
        venv.create(PLACE, with_pip=True, clear=True)
        pip = [str(PLACE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--require-hashes", "--requirement", str(LOCK)], check=True)
        done.touch()
    return PLACE


if __name__ == "__main__":
    environment = {**os.environ, "LAKEOPS_TEST_CLIENTS": str(install())}
    sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
