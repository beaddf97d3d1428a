"""``lakeops mirror setup-s3``: shows, asks, writes; on servers in place of S3."""

from __future__ import annotations

import json

import pytest

from lakeops.lake import Lake
from lakeops.ops import setup_s3
from lakeops.store.s3.client import client

ROLE = "arn:aws:iam::123456789012:role/replicate"


@pytest.fixture
def buckets_there(home, two_buckets, ministack_endpoint, monkeypatch):
    """A repository in a bucket, and another bucket beside it, on a server that the settings name."""
    monkeypatch.setenv("LAKEOPS_S3_ENDPOINT_URL", ministack_endpoint)
    source, mirror = two_buckets("ministack")
    with Lake.open() as lake:
        lake.create_repository("flights", source.url)
    return source, mirror


@pytest.fixture
def args(buckets_there) -> list[str]:
    return ["mirror", "setup-s3", "lakefs://flights", "--destination", buckets_there[1].url, "--role", ROLE]


def replication(source) -> object:
    try:
        return client(source.settings).get_bucket_replication(Bucket=source.bucket)["ReplicationConfiguration"]
    except client(source.settings).exceptions.ClientError:
        return None


def test_nothing_is_written_before_somebody_agrees(run, args, buckets_there):
    found = run.error(*args)
    assert found["exit_code"] == 2
    assert "--yes" in found["message"]
    shown = run(*args).stderr
    assert "replication of bucket" in shown
    assert '+  "Role": "arn:aws:iam::123456789012:role/replicate"' in " ".join(shown.split("\n")).replace("  +", "+")
    assert replication(buckets_there[0]) is None


def test_a_dry_run_shows_and_writes_nothing(run, args, buckets_there):
    result = run(*args, "--dry-run")
    assert result.exit_code == 0
    assert "5 settings would change" in result.stdout
    assert '"ExpiredObjectDeleteMarker": true' in result.stderr
    document = run.json(*args, "--dry-run")
    assert document["applied"] is False
    assert document["changed"] == 5
    assert replication(buckets_there[0]) is None


def test_it_is_set_up_once(run, args, buckets_there):
    source, mirror = buckets_there
    result = run(*args, "--yes")
    assert result.exit_code == 0, result.output
    assert f"Set up replication of {source.url}/ to {mirror.url}/: 5 settings changed." in result.stdout
    assert "mirror replicate" in result.stderr
    assert replication(source)["Role"] == ROLE
    document = run.json(*args)
    assert document == {
        "source": f"{source.url}/",
        "destination": f"{mirror.url}/",
        "applied": True,
        "changed": 0,
        "steps": document["steps"],
        "warnings": [],
        "existing": True,
        "batch": None,
    }
    assert {step["setting"]: step["changed"] for step in document["steps"]} == {
        "versioning": False,
        "lifecycle": False,
        "replication": False,
    }
    assert "nothing to change" in run.ok(*args)


def test_namespaces_can_be_named_without_a_repository(run, args, buckets_there):
    source, mirror = buckets_there
    words = ["mirror", "setup-s3", "--source", source.url, "--destination", mirror.url, "--role", ROLE]
    assert run.json(*words, "--yes")["changed"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lakefs://flights", "--role", ROLE], "--destination"),
        (["--destination", "s3://elsewhere/x", "--role", ROLE], "--source"),
        (["lakefs://flights", "--destination", "s3://elsewhere/x", "--role", "me"], "arn:aws:iam"),
        (["lakefs://flights", "--destination", "s3://no-such-bucket-here/flights", "--role", ROLE], "does not exist"),
    ],
)
def test_what_is_wrong_is_said(run, buckets_there, words, message):
    words = [word.replace("s3://elsewhere/x", f"s3://{buckets_there[1].bucket}/flights") for word in words]
    assert message in run.error("mirror", "setup-s3", *words)["message"]


def test_a_local_namespace_is_no_bucket(run, flights):
    words = ["mirror", "setup-s3", "lakefs://flights", "--destination", "s3://elsewhere/flights", "--role", ROLE]
    found = run.error(*words)
    assert found["kind"] == "invalid_input"
    assert "mirror replicate" in found["message"]


def test_an_unknown_repository(run, lake):
    words = ["mirror", "setup-s3", "lakefs://none", "--destination", "s3://elsewhere/flights", "--role", ROLE]
    assert run.error(*words)["kind"] == "repository_not_found"


def test_a_batch_job_needs_aws(run, args):
    found = run.error(*args, "--start-batch", "--yes")
    assert found["kind"] == "unsupported"


def test_the_policy_is_printed_without_asking_the_buckets(run, args):
    text = run.ok(*args, "--print-policy")
    assert '"s3:ReplicateDelete"' in text
    assert '"sts:AssumeRole"' in text
    document = run.json(*args[:5], "--print-policy")
    assert {*document} == {"policy", "trust"}
    assert json.loads(json.dumps(document)) == document


def test_the_rule_is_taken_away_when_somebody_agrees(run, args, buckets_there):
    source, _ = buckets_there
    run.ok(*args, "--yes")
    words = [*args[:5], "--remove"]
    assert "--yes" in run.error(*words)["message"]
    assert "1 setting would change" in run.ok(*words, "--dry-run")
    assert replication(source) is not None
    assert "There is no replication of" in run.ok(*words, "--yes")
    assert replication(source) is None
    assert run.json(*words)["changed"] == 0
    assert run.error(*words, "--start-batch")["kind"] == "invalid_input"


def test_a_mirror_knows_both_buckets(run, buckets_there, home, monkeypatch):
    source, mirror = buckets_there
    monkeypatch.setenv("LAKEOPS_HOME", str(home.parent / "other"))
    with Lake.open() as lake:
        lake.create_mirror("copy", mirror.url, source=f"{home}#flights")
    document = run.json("mirror", "setup-s3", "lakefs://copy", "--role", ROLE, "--yes")
    assert (document["source"], document["destination"]) == (f"{source.url}/", f"{mirror.url}/")
    assert replication(source)["Role"] == ROLE


@pytest.fixture
def as_on_aws(home, two_buckets, moto_endpoint, monkeypatch):
    """Two buckets that no setting of lakeops names a server for, as AWS's are."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_endpoint)
    source, mirror = two_buckets("moto", f"p{home.parent.name}")
    source.put("data/before", b"1")
    return ["mirror", "setup-s3", "--source", source.url, "--destination", mirror.url, "--role", ROLE]


def test_on_aws_the_batch_job_is_printed(run, as_on_aws):
    result = run(*as_on_aws, "--yes")
    assert result.exit_code == 0, result.output
    assert "--start-batch" in result.stderr
    assert "aws s3control create-job --region us-east-1 --account-id 123456789012" in result.stderr
    batch = run.json(*as_on_aws, "--dry-run")["batch"]
    assert batch["job_id"] is None
    assert batch["command"].startswith("aws s3control create-job")
    assert batch["job"]["ManifestGenerator"]["S3JobManifestGenerator"]["Filter"]["EligibleForReplication"] is True


def test_on_aws_the_batch_job_is_started(run, as_on_aws, monkeypatch):
    started = []

    class Control:
        def create_job(self, **job):
            started.append(job)
            return {"JobId": "job-7"}

    monkeypatch.setattr(setup_s3, "control_client", lambda _: Control())
    assert "Batch replication job job-7" in run.ok(*as_on_aws, "--start-batch", "--yes")
    (job,) = started
    assert job["RoleArn"] == ROLE
    assert "--yes" in run.error(*as_on_aws, "--start-batch")["message"], (
        "once more it asks, though nothing would change"
    )
