"""Prepare what Airflow and lakeops need before they start. Safe to run again at each start.

Airflow's database gets its tables, the administrator a password, the lake a bucket and its catalog. Then
``lakeops doctor`` says whether catalog and store answer.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

from lakeops import Lake


def main() -> None:
    """All of it, in order."""
    subprocess.run(["airflow", "db", "migrate"], check=True)
    write_password(Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]))
    make_bucket(os.environ["LAKE_BUCKET"], os.environ.get("LAKEOPS_S3_ENDPOINT_URL") or None)
    with Lake.open() as lake:
        names = [repository.id for repository in lake.repositories()]
    print(f"The lake has the repositories {', '.join(names)}." if names else "The lake has no repository yet.")
    subprocess.run(["lakeops", "doctor"], check=True)


def write_password(file: Path) -> None:
    """The password of Airflow's user ``admin``, in the file that only Airflow's processes read."""
    file.touch(mode=0o600)
    file.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))


def make_bucket(name: str, endpoint: str | None) -> None:
    """The lake's bucket, unless it is there. A bucket on AWS belongs to whoever manages the account."""
    if endpoint is None:
        return
    s3 = boto3.client("s3", endpoint_url=endpoint)
    try:
        s3.head_bucket(Bucket=name)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        s3.create_bucket(Bucket=name)


if __name__ == "__main__":
    main()
