#!/usr/bin/env python3
"""A real S3 server for tests: Ceph's radosgw with one monitor and one in-memory disk, on loopback only.

    radosgw.py start DIR     start it, keep everything under DIR, print shell exports (endpoint and credentials)
    radosgw.py stop DIR      end it and remove DIR

Debian's packages are installed when they are missing, which needs root. Everything is thrown away on stop.
"""

import http.client
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PACKAGES = ["radosgw", "ceph-mon", "ceph-osd", "ceph-mgr", "ceph-common"]
COMMANDS = ["radosgw", "radosgw-admin", "ceph-mon", "ceph-osd", "ceph", "ceph-authtool", "monmaptool"]
PATIENCE = 120.0

CONFIG = """\
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {dir}/keyring
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 8589934592
mon_data = {dir}/mon
osd_data = {dir}/osd
mgr_data = {dir}/mgr
run_dir = {dir}/run
admin_socket = {dir}/run/$name.asok
pid_file = {dir}/run/$name.pid
log_file = {dir}/log/$name.log

[client.rgw.a]
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_data = {dir}/rgw
"""

KEYS = [
    ("mon.", ["--cap", "mon", "allow *"]),
    ("client.admin", ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"]),
    ("client.rgw.a", ["--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"]),
    ("osd.0", ["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"]),
]


def say(text: str) -> None:
    """Tell people; stdout is for the exports."""
    print(text, file=sys.stderr, flush=True)


def run(*command: str) -> None:
    """Run a command to its end; its output is shown only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed with {done.returncode}:\n{done.stdout[-2000:]}")


def install() -> None:
    """Have the packages, by apt-get if need be."""
    if all(shutil.which(command) for command in COMMANDS):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit(f"install the Debian packages {' '.join(PACKAGES)} first (this script can do it only as root)")
    say("Installing radosgw (about 70 MB) ...")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, all different because they are held until the last one is found.

    They lie below those that the system gives to connections and to port 0 (32,768 and more on Linux). One of these
    could be taken before the server listens on it.
    """
    held: list[socket.socket] = []
    for port in random.sample(range(20_000, 32_000), 1_000):
        if len(held) == count:
            break
        with suppress(OSError):
            held.append(socket.create_server(("127.0.0.1", port)))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Come back as soon as a condition holds; give up with a message when it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come up within {PATIENCE:.0f} seconds")
        time.sleep(0.1)


def answers(port: int) -> bool:
    """Whether an HTTP server speaks on this port, whatever it says."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    else:
        return True
    finally:
        connection.close()


def start(place: Path) -> None:
    """Build the cluster under a directory, start it, and print how to reach it."""
    install()
    for name in ("run", "log", "mon", "osd", "mgr", "rgw"):
        (place / name).mkdir(parents=True, exist_ok=True)
    mon_v2, mon_v1, port = free_ports(3)
    fsid, disk = str(uuid.uuid4()), str(uuid.uuid4())
    config = place / "ceph.conf"
    config.write_text(CONFIG.format(dir=place, fsid=fsid, mon_v2=mon_v2, mon_v1=mon_v1, port=port))
    use = ["-c", str(config)]
    keyring = str(place / "keyring")

    run("ceph-authtool", "--create-keyring", keyring)
    for name, capabilities in KEYS:
        run("ceph-authtool", keyring, "--gen-key", "-n", name, *capabilities)
    monmap = str(place / "monmap")
    address = f"[v2:127.0.0.1:{mon_v2},v1:127.0.0.1:{mon_v1}]"
    run("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, monmap)
    run("ceph-mon", *use, "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
    run("ceph-mon", *use, "-i", "a")

    # The disk must be known to the monitor by the uuid it is made with, or it stays "booting" for ever.
    run("ceph", *use, "osd", "new", disk)
    run("ceph", *use, "osd", "crush", "add-bucket", "h1", "host")
    run("ceph", *use, "osd", "crush", "move", "h1", "root=default")
    run("ceph-osd", *use, "-i", "0", "--mkfs", "--osd-uuid", disk)
    run("ceph", *use, "osd", "crush", "add", "osd.0", "1.0", "host=h1")
    run("ceph-osd", *use, "-i", "0")

    run("radosgw", *use, "-n", "client.rgw.a")
    wait_for("radosgw", lambda: answers(port))
    endpoint = f"http://127.0.0.1:{port}"
    access, secret = "test" + secrets.token_hex(8), secrets.token_hex(20)
    run(
        "radosgw-admin", *use, "user", "create", "--uid=lakeops", "--display-name=lakeops",
        f"--access-key={access}", f"--secret={secret}",
    )  # fmt: skip
    say(f"radosgw answers on {endpoint}")
    for name, value in {
        "LAKEOPS_TEST_S3_ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        print(f"export {name}={shlex.quote(value)}")


def is_ours(pid: int, place: Path) -> bool:
    """Whether a process runs and was started for this directory; a number alone may be another's by now."""
    try:
        return str(place / "ceph.conf").encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def stop(place: Path) -> None:
    """End what was started for a directory, and remove the directory."""
    for name in ("client.rgw.a", "osd.0", "mon.a"):
        try:
            pid = int((place / "run" / f"{name}.pid").read_text())
        except (OSError, ValueError):
            continue
        if is_ours(pid, place):
            os.kill(pid, signal.SIGKILL)
            wait_for(f"the end of {name}", lambda pid=pid: not is_ours(pid, place))
    shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """Read the command line."""
    if len(sys.argv) != 3 or sys.argv[1] not in {"start", "stop"}:
        sys.exit(__doc__)
    place = Path(sys.argv[2]).resolve()
    if sys.argv[1] == "stop":
        stop(place)
        return
    try:
        start(place)
    except BaseException:
        stop(place)
        raise


if __name__ == "__main__":
    main()
