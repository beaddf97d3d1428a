"""``lakeops mirror setup-s3``: prints, compares, asks, writes; on servers in place of S3."""

from __future__ import annotations

import json

import pytest

from lakeops.lake import Lake
from lakeops.store.s3 import replication_rules
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
    found = run.error(*args, "--apply")
    assert found["exit_code"] == 2
    assert "--yes" in found["message"]
    shown = run(*args, "--apply").stderr
    assert "replication of bucket" in shown
    assert '+  "Role": "arn:aws:iam::123456789012:role/replicate"' in " ".join(shown.split("\n")).replace("  +", "+")
    assert replication(buckets_there[0]) is None


def test_a_check_compares_and_writes_nothing(run, args, buckets_there):
    result = run(*args, "--dry-run")
    assert result.exit_code == 1
    assert "5 settings to write" in result.stdout
    assert '"ExpiredObjectDeleteMarker": true' in result.stderr
    result = run(*args, "--dry-run", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["applied"] is False
    assert document["changed"] == 5
    assert replication(buckets_there[0]) is None
    run.ok(*args, "--apply", "--yes")
    assert "is set up" in run.ok(*args, "--dry-run")
    assert run.json(*args, "--dry-run")["changed"] == 0


@pytest.mark.parametrize("changed", ["a day more", "versions off"])
def test_a_check_sees_what_was_changed_since(run, args, buckets_there, changed):
    source, _ = buckets_there
    run.ok(*args, "--apply", "--yes")
    asked = client(source.settings)
    if changed == "versions off":
        asked.put_bucket_versioning(Bucket=source.bucket, VersioningConfiguration={"Status": "Suspended"})
    else:
        rules = asked.get_bucket_lifecycle_configuration(Bucket=source.bucket)["Rules"]
        rules[0]["NoncurrentVersionExpiration"]["NoncurrentDays"] += 1
        asked.put_bucket_lifecycle_configuration(Bucket=source.bucket, LifecycleConfiguration={"Rules": rules})
    result = run(*args, "--dry-run", "--json")
    assert result.exit_code == 1
    changes = [(step["bucket"], step["setting"]) for step in json.loads(result.stdout)["steps"] if step["changed"]]
    assert changes == [(source.bucket, "versioning" if changed == "versions off" else "lifecycle")]


def test_it_is_set_up_once(run, args, buckets_there):
    source, mirror = buckets_there
    result = run(*args, "--apply", "--yes")
    assert result.exit_code == 0, result.output
    assert f"Set up replication of {source.url}/ to {mirror.url}/: 5 settings changed." in result.stdout
    assert "mirror replicate" in result.stderr
    assert replication(source)["Role"] == ROLE
    document = run.json(*args, "--apply")
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
    assert "nothing to change" in run.ok(*args, "--apply")


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
    assert message in run.error("mirror", "setup-s3", *words, "--dry-run")["message"]


def test_a_local_namespace_is_no_bucket(run, flights):
    words = ["mirror", "setup-s3", "lakefs://flights", "--destination", "s3://elsewhere/flights", "--role", ROLE]
    found = run.error(*words)
    assert found["kind"] == "invalid_input"
    assert "mirror replicate" in found["message"]


def test_a_batch_job_needs_aws(run, args):
    found = run.error(*args, "--apply", "--start-batch", "--yes")
    assert found["kind"] == "unsupported"


@pytest.fixture
def offline(monkeypatch):
    """No bucket may be asked for anything."""

    def refuse(*_, **__):
        raise AssertionError("a bucket was asked")

    monkeypatch.setattr("lakeops.ops.mirror.setup_s3.Bucket", refuse)


def test_it_prints_what_s3_and_iam_need_without_asking_the_buckets(run, args, buckets_there, offline):
    printed = json.loads(run.ok(*args))
    assert printed == run.json(*args)
    assert {*printed} == {"versioning", "lifecycle", "replication", "policy", "trust"}
    assert printed["replication"]["Role"] == ROLE
    assert "s3:ReplicateDelete" in json.dumps(printed["policy"])
    assert "sts:AssumeRole" in json.dumps(printed["trust"])


def test_without_a_role_it_says_how_to_make_one(run, args, buckets_there, offline):
    result = run(*args[:5])
    assert result.exit_code == 0
    assert "--role ARN" in result.stderr
    assert "Role" not in json.loads(result.stdout)["replication"]


def test_what_it_prints_is_what_apply_writes(run, args, buckets_there):
    source, mirror = buckets_there
    printed = run.json(*args)
    run.ok(*args, "--apply", "--yes")
    asked = client(source.settings)
    assert replication(source) == printed["replication"]
    for bucket in (source.bucket, mirror.bucket):
        assert asked.get_bucket_versioning(Bucket=bucket)["Status"] == printed["versioning"]["Status"]
        assert asked.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"] == printed["lifecycle"]["Rules"]


def test_it_prints_terraform(run, args, buckets_there, offline):
    source, mirror = buckets_there
    printed = json.loads(run.ok(*args, "--format", "terraform"))
    (rules,) = printed["resource"]["aws_s3_bucket_replication_configuration"].values()
    assert (rules["bucket"], rules["role"]) == (source.bucket, ROLE)
    assert rules["rule"][0]["destination"] == {"bucket": f"arn:aws:s3:::{mirror.bucket}"}
    assert run.error(*args, "--format", "hcl")["exit_code"] == 2


@pytest.mark.parametrize("words", [["--apply", "--dry-run"], ["--apply", "--remove"], ["--start-batch"]])
def test_one_thing_at_a_time(run, args, words):
    assert run.error(*args, *words)["kind"] == "invalid_input"


def test_the_rule_is_taken_away_when_somebody_agrees(run, args, buckets_there):
    source, _ = buckets_there
    run.ok(*args, "--apply", "--yes")
    words = [*args[:5], "--remove"]
    assert "--yes" in run.error(*words)["message"]
    looked = run(*words, "--dry-run")
    assert looked.exit_code == 1
    assert "1 setting to remove" in looked.stdout
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
    document = run.json("mirror", "setup-s3", "lakefs://copy", "--role", ROLE, "--apply", "--yes")
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
    result = run(*as_on_aws, "--apply", "--yes")
    assert result.exit_code == 0, result.output
    assert "--start-batch" in result.stderr
    assert "aws s3control create-job --region us-east-1 --account-id 123456789012" in result.stderr
    batch = run.json(*as_on_aws, "--apply", "--yes")["batch"]
    assert batch["job_id"] is None
    assert batch["command"].startswith("aws s3control create-job")
    assert batch["job"]["ManifestGenerator"]["S3JobManifestGenerator"]["Filter"]["EligibleForReplication"] is True


def test_on_aws_the_batch_job_is_started(run, as_on_aws, monkeypatch):
    started = []

    class Control:
        def create_job(self, **job):
            started.append(job)
            return {"JobId": "job-7"}

    monkeypatch.setattr(replication_rules, "control_client", lambda _: Control())
    assert "Batch replication job job-7" in run.ok(*as_on_aws, "--apply", "--start-batch", "--yes")
    (job,) = started
    assert job["RoleArn"] == ROLE
    assert "--yes" in run.error(*as_on_aws, "--apply", "--start-batch")["message"], (
        "once more it asks, though nothing would change"
    )
