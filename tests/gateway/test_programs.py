"""Tests of users' S3 programs on a branch without a setting of ours. ``make test-clients`` brings the programs.

The page has the table of clients by operation. Each cell is tried, and the contents are compared in the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from lakeops import Branch, Lake, Settings
from lakeops.gateway.app import serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
SMALL, LARGE = b"id,amount\n1,2\n", Random(1).randbytes(20 << 20)
FOLDER = {"a.csv": b"a", "day=1/b.csv": b"b", "day=2/c d+é.csv": b"c"}

AWS = {
    "put": "$AWS s3 cp small.csv s3://shop/main/$ME/small.csv",
    "put 20 MiB": "$AWS s3 cp large.bin s3://shop/main/$ME/large.bin",
    "get": "$AWS s3 cp s3://shop/main/$ME/large.bin got.bin",
    "list": "$AWS s3 ls s3://shop/main/$ME/",
    "copy": "$AWS s3 cp s3://shop/main/$ME/small.csv s3://shop/main/$ME/copy.csv",
    "copy 20 MiB": "$AWS s3 cp s3://shop/main/$ME/large.bin s3://shop/main/$ME/copy.bin",
    "rename": "$AWS s3 mv s3://shop/main/$ME/copy.csv s3://shop/main/$ME/moved.csv",
    "folder up": "$AWS s3 sync folder s3://shop/main/$ME/folder",
    "folder down": "$AWS s3 sync s3://shop/main/$ME/folder down",
    "delete": "$AWS s3 rm s3://shop/main/$ME/moved.csv",
    "delete folder": "$AWS s3 rm --recursive s3://shop/main/$ME/folder",
}
RCLONE = {
    "put": "rclone copyto small.csv l:shop/main/$ME/small.csv",
    "put 20 MiB": "rclone copyto --s3-upload-cutoff 5M large.bin l:shop/main/$ME/large.bin",
    "get": "rclone copyto l:shop/main/$ME/large.bin got.bin",
    "list": "rclone lsf l:shop/main/$ME",
    "copy": "rclone copyto l:shop/main/$ME/small.csv l:shop/main/$ME/copy.csv",
    "copy 20 MiB": "rclone copyto --s3-copy-cutoff 5M l:shop/main/$ME/large.bin l:shop/main/$ME/copy.bin",
    "rename": "rclone moveto l:shop/main/$ME/copy.csv l:shop/main/$ME/moved.csv",
    "folder up": "rclone sync folder l:shop/main/$ME/folder && rclone check folder l:shop/main/$ME/folder",
    "folder down": "rclone sync l:shop/main/$ME/folder down",
    "delete": "rclone deletefile l:shop/main/$ME/moved.csv",
    "delete folder": "rclone purge l:shop/main/$ME/folder",
}
S3CMD = {
    "put": "$S3CMD put small.csv s3://shop/main/$ME/small.csv",
    "put 20 MiB": "$S3CMD put --multipart-chunk-size-mb=5 large.bin s3://shop/main/$ME/large.bin",
    "get": "$S3CMD get s3://shop/main/$ME/large.bin got.bin",
    "list": "$S3CMD ls s3://shop/main/$ME/",
    "copy": "$S3CMD cp s3://shop/main/$ME/small.csv s3://shop/main/$ME/copy.csv",
    "copy 20 MiB": "$S3CMD cp s3://shop/main/$ME/large.bin s3://shop/main/$ME/copy.bin",
    "rename": "$S3CMD mv s3://shop/main/$ME/copy.csv s3://shop/main/$ME/moved.csv",
    "folder up": "$S3CMD sync folder/ s3://shop/main/$ME/folder/",
    "folder down": "$S3CMD sync s3://shop/main/$ME/folder/ down/",
    "delete": "$S3CMD del s3://shop/main/$ME/moved.csv",
    "delete folder": "$S3CMD del --recursive s3://shop/main/$ME/folder",
}
BOTO3 = {
    "put": "s3.upload_file('small.csv', 'shop', f'{me}/small.csv')",
    "put 20 MiB": "s3.upload_file('large.bin', 'shop', f'{me}/large.bin')",
    "get": "s3.download_file('shop', f'{me}/large.bin', 'got.bin')",
    "list": "print([one['Key'] for one in s3.list_objects_v2(Bucket='shop', Prefix=me)['Contents']])",
    "copy": "s3.copy({'Bucket': 'shop', 'Key': f'{me}/small.csv'}, 'shop', f'{me}/copy.csv')",
    "copy 20 MiB": "s3.copy({'Bucket': 'shop', 'Key': f'{me}/large.bin'}, 'shop', f'{me}/copy.bin', Config=parts)",
    "delete": "s3.delete_object(Bucket='shop', Key=f'{me}/copy.csv')",
}
FSSPEC = {
    "put": "fs.put_file('small.csv', f'{me}/small.csv')",
    "put 20 MiB": "fs.put_file('large.bin', f'{me}/large.bin', chunksize=5 << 20)",
    "get": "fs.get_file(f'{me}/large.bin', 'got.bin')",
    "list": "print(fs.find(me))",
    "copy": "fs.copy(f'{me}/small.csv', f'{me}/copy.csv')",
    "copy 20 MiB": "fs.copy(f'{me}/large.bin', f'{me}/copy.bin')",
    "rename": "fs.mv(f'{me}/copy.csv', f'{me}/moved.csv')",
    "folder up": "fs.put('folder/', f'{me}/folder/', recursive=True)",
    "folder down": "fs.get(f'{me}/folder/', 'down/', recursive=True)",
    "delete": "fs.rm(f'{me}/moved.csv')",
    "delete folder": "fs.rm(f'{me}/folder', recursive=True)",
}
OBSTORE = {
    "put": "o.put(store, f'{me}/small.csv', b'id,amount\\n1,2\\n', attributes={'Content-Type': 'text/csv'})",
    "put 20 MiB": "o.put(store, f'{me}/large.bin', open('large.bin', 'rb'), use_multipart=True, chunk_size=5 << 20)",
    "get": "open('got.bin', 'wb').write(o.get(store, f'{me}/large.bin').bytes())",
    "list": "print([one['path'] for page in o.list(store, me) for one in page])",
    "copy": "o.copy(store, f'{me}/small.csv', f'{me}/copy.csv')",
    "copy 20 MiB": "o.copy(store, f'{me}/large.bin', f'{me}/copy.bin')",
    "rename": "o.rename(store, f'{me}/copy.csv', f'{me}/moved.csv')",
    "delete": "o.delete(store, f'{me}/moved.csv')",
}
ARROW = {
    "put": "fs.open_output_stream(f'{me}/small.csv').write(b'id,amount\\n1,2\\n')",
    "put 20 MiB": "copy_files('large.bin', f'{me}/large.bin', destination_filesystem=fs)",
    "get": "open('got.bin', 'wb').write(fs.open_input_file(f'{me}/large.bin').readall())",
    "list": "print([one.path for one in fs.get_file_info(FileSelector(me, recursive=True))])",
    "copy": "fs.copy_file(f'{me}/small.csv', f'{me}/copy.csv')",
    "copy 20 MiB": "fs.copy_file(f'{me}/large.bin', f'{me}/copy.bin')",
    "rename": "fs.move(f'{me}/copy.csv', f'{me}/moved.csv')",
    "folder up": "copy_files('folder', f'{me}/folder', destination_filesystem=fs)",
    "folder down": "copy_files(f'{me}/folder', 'down', source_filesystem=fs)",
    "delete": "fs.delete_file(f'{me}/moved.csv')",
    "delete folder": "fs.delete_dir(f'{me}/folder')",
}
POLARS = {
    "put": "pl.DataFrame({'id': [1], 'amount': [2]}).write_csv(f's3://{me}/small.csv', storage_options=told)",
    "list": "print(pl.scan_csv(f's3://{me}/*.csv', storage_options=told).collect(), 'small.csv')",
}
PRELUDES = {
    "boto3": """import boto3, boto3.s3.transfer
s3 = boto3.client("s3", endpoint_url=url, region_name="us-east-1")
me = me.removeprefix("shop/")
parts = boto3.s3.transfer.TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)""",
    "s3fs": """import s3fs
fs = s3fs.S3FileSystem(endpoint_url=url)""",
    "obstore": """import obstore as o
from obstore.store import S3Store
store = S3Store("shop", endpoint=url, region="us-east-1", client_options={"allow_http": True})
me = me.removeprefix("shop/")""",
    "pyarrow": """from pyarrow.fs import FileSelector, S3FileSystem, copy_files
fs = S3FileSystem(endpoint_override=url)""",
    "polars": """import os
import polars as pl
told = {"aws_endpoint_url": url, "aws_region": "us-east-1", "aws_allow_http": "true"}""",
}
CLIENTS = {
    "aws-cli 1": AWS,
    "aws-cli 2": AWS,
    "rclone": RCLONE,
    "s3cmd": S3CMD,
    "boto3": BOTO3,
    "s3fs": FSSPEC,
    "obstore": OBSTORE,
    "pyarrow": ARROW,
    "polars": POLARS,
}
OPERATIONS = [*AWS]


@dataclass(frozen=True)
class Desk:
    """A folder with files, and a repository behind a gateway."""

    folder: Path
    branch: Branch
    environment: dict[str, str]

    def run(self, client: str, me: str, work: str) -> str:
        env = {**self.environment, "ME": me, "AWS": self.environment[f"AWS_{client[-1]}"] if "aws" in client else ""}
        command = ["bash", "-ec", work]
        if client in PRELUDES:
            url = self.environment["URL"]
            program = f"url, me = {url!r}, 'shop/main/{me}'\n{PRELUDES[client]}\n{work}"
            python = f"{self.environment['PLACE']}/bin/python" if client == "s3fs" else sys.executable
            command = [python, "-c", program]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Branch, dict[str, str]]]:
    if "LAKEOPS_TEST_CLIENTS" not in os.environ:
        pytest.skip("make test-clients brings rclone, s3cmd, aws-cli and s3fs")
    place, home = os.environ["LAKEOPS_TEST_CLIENTS"], tmp_path_factory.mktemp("home")
    settings = Settings.model_construct(home=home, fsync=False, committer="tester")
    with Lake.open(settings=settings) as lake, serving(lake, write=True) as options:
        url = options["aws_endpoint_url"]
        host = url.removeprefix("http://")
        key, secret = options["aws_access_key_id"], options["aws_secret_access_key"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LAKEOPS_"))}
        environment |= {"URL": url, "PLACE": place, "HOME": str(home), "LANG": "C.UTF-8"}
        environment |= {"AWS_1": f"{place}/bin/aws --endpoint-url {url}", "AWS_2": f"/usr/bin/aws --endpoint-url {url}"}
        environment |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_DEFAULT_REGION": "us-east-1"}
        environment |= {"AWS_EC2_METADATA_DISABLED": "true"}
        environment |= {
            f"RCLONE_CONFIG_L_{name}": value
            for name, value in {
                "TYPE": "s3",
                "PROVIDER": "Other",
                "ENDPOINT": url,
                "ACCESS_KEY_ID": key,
                "SECRET_ACCESS_KEY": secret,
            }.items()
        }
        named = f"--access_key={key} --secret_key={secret} --host={host} --host-bucket={host}"
        environment["S3CMD"] = f"s3cmd --config=/dev/null --no-ssl --no-progress {named}"
        yield lake.create_repository("shop").branch("main"), environment


@pytest.fixture
def desk(served: tuple[Branch, dict[str, str]], tmp_path: Path) -> Desk:
    for name, text in {"small.csv": SMALL, "large.bin": LARGE, **{f"folder/{k}": v for k, v in FOLDER.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    (tmp_path / "down").mkdir()
    return Desk(tmp_path, *served)


def check(desk: Desk, me: str, operation: str, said: str) -> None:
    """Compare what an operation has left with what it has to leave."""
    branch, name = desk.branch, {"put": "small.csv", "put 20 MiB": "large.bin", "copy": "copy.csv"}.get(operation)
    if name is not None:
        assert branch.read(f"{me}/{name}") == (LARGE if name == "large.bin" else SMALL)
    elif operation == "get":
        assert (desk.folder / "got.bin").read_bytes() == LARGE
    elif operation == "copy 20 MiB":
        assert branch.read(f"{me}/copy.bin") == LARGE
    elif operation == "list":
        assert "small.csv" in said
    elif operation == "rename":
        assert branch.find(f"{me}/copy.csv") is None
        assert branch.read(f"{me}/moved.csv") == SMALL
    elif operation == "folder up":
        found = {one.path.removeprefix(f"{me}/folder/"): branch.read(one.path) for one in branch.list(f"{me}/folder/")}
        assert {path: text for path, text in found.items() if path and not path.endswith("/")} == FOLDER
    elif operation == "folder down":
        files = [one for one in (desk.folder / "down").rglob("*") if one.is_file()]
        assert {str(one.relative_to(desk.folder / "down")): one.read_bytes() for one in files} == FOLDER
    elif operation == "delete":
        assert branch.find(f"{me}/moved.csv") is None
    else:
        assert not [one for one in branch.list(f"{me}/folder/") if not one.path.endswith("/")]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_does_on_a_branch_what_it_does_on_s3(desk: Desk, client: str) -> None:
    me = client.replace(" ", "-")
    for operation, work in CLIENTS[client].items():
        check(desk, me, operation, desk.run(client, me, work))


def test_the_page_has_the_table() -> None:
    head = f"| client | {' | '.join(OPERATIONS)} |"
    rows = [
        f"| {name} | {' | '.join('yes' if one in work else '' for one in OPERATIONS)} |"
        for name, work in CLIENTS.items()
    ]
    assert "\n".join([head, "|---" * (len(OPERATIONS) + 1) + "|", *rows]) in PAGE.read_text()
