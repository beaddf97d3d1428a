#!/usr/bin/env python3
"""Chromium for the tests that look at pages. Debian's package is installed where it is missing, which needs root."""

import os
import shutil
import subprocess
import sys


def install() -> None:
    """Have the command ``chromium``."""
    if shutil.which("chromium"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit("install the Debian package chromium first (this script can do it only as root)")
    print("Installing Chromium (about 100 MB) ...", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        done = subprocess.run(
            ["apt-get", "-qq", *command], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"apt-get {command[0]} failed with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


if __name__ == "__main__":
    install()
