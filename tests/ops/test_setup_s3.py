"""Setting replication up: on moto, where every field is read back, and on ministack, which then replicates."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import boto3
import pytest
from botocore.stub import Stubber
from services.s3 import QUICK
from support.errors import raising
from support.http_answers import Answers, error

from lakeops import Lake, Settings, Split
from lakeops.model.errors import InvalidInput, PreconditionFailed, StoreError, Transient
from lakeops.ops.mirror import setup_s3
from lakeops.ops.mirror.setup_s3 import carry_out, make_plan, make_removal_plan, replication_of
from lakeops.store.s3 import S3Store, replication_rules
from lakeops.store.s3.client import client
from lakeops.store.s3.replication_rules import lifecycle_id, replication_id

ROLE = "arn:aws:iam::123456789012:role/replicate"
OTHERS = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}


def plan_for(stores, **more):
    source, mirror = stores
    batch_role: Any = more.pop("batch_role", "")
    wish = replication_of(source.url, mirror.url, **{"role": ROLE, **more})
    return make_plan(wish, source.settings, batch_role=batch_role)


@pytest.fixture(params=["moto", "ministack"])
def stores_kind(request):
    return request.param


@pytest.fixture
def stores(stores_kind, two_buckets):
    return two_buckets(stores_kind)


@pytest.fixture
def on_ministack(two_buckets):
    return two_buckets("ministack")


@pytest.fixture
def listen():
    """Has an operation meet the given answers, and gives these; None lets requests through."""
    with ExitStack() as stack:

        def listening(store, operation, *turns):
            answers, events = Answers(*turns), client(store.settings).meta.events
            events.register(f"before-send.s3.{operation}", answers)
            stack.callback(events.unregister, f"before-send.s3.{operation}", answers)
            return answers

        yield listening


@pytest.fixture
def on_moto(two_buckets):
    return two_buckets("moto")


def test_everything_is_written_and_read_back(stores, stores_kind):
    source, mirror = stores
    asked = client(source.settings)
    plan = plan_for(stores, noncurrent_days=5)
    assert [(step.bucket.name, step.setting) for step in plan.changes] == [
        (mirror.bucket, "versioning"),
        (source.bucket, "versioning"),
        (mirror.bucket, "lifecycle"),
        (source.bucket, "lifecycle"),
        (source.bucket, "replication"),
    ]
    carry_out(plan)
    for bucket in (source.bucket, mirror.bucket):
        assert asked.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
        (rule,) = asked.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        assert rule == {
            "ID": lifecycle_id("flights/"),
            "Status": "Enabled",
            "Filter": {"Prefix": "flights/"},
            "Expiration": {"ExpiredObjectDeleteMarker": True},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 5},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        }
    if stores_kind == "moto":  # it forgets the filter and what is done with delete markers; the next test looks there
        return
    assert asked.get_bucket_replication(Bucket=source.bucket)["ReplicationConfiguration"] == {
        "Role": ROLE,
        "Rules": [
            {
                "ID": replication_id(plan.wish),
                "Priority": 1,
                "Status": "Enabled",
                "Filter": {"Prefix": "flights/"},
                "DeleteMarkerReplication": {"Status": "Enabled"},
                "Destination": {"Bucket": f"arn:aws:s3:::{mirror.bucket}"},
            }
        ],
    }


def test_the_replication_as_it_is_sent(on_moto, listen):
    source, mirror = on_moto
    sent = listen(source, "PutBucketReplication", None)
    carry_out(plan_for(on_moto, replica_key="arn:aws:kms:us-east-1:123456789012:key/1"))
    (request,) = sent.requests
    found = ET.fromstring(request.body)
    fields = {
        "/".join(part.tag.rpartition("}")[2] for part in path): path[-1].text
        for path in _paths(found, ())
        if path[-1].text
    }
    rule_id = fields.pop("ReplicationConfiguration/Rule/ID")
    assert rule_id == replication_id(plan_for(on_moto).wish)
    assert {name.removeprefix("ReplicationConfiguration/"): value for name, value in fields.items()} == {
        "Role": ROLE,
        "Rule/Priority": "1",
        "Rule/Filter/Prefix": "flights/",
        "Rule/Status": "Enabled",
        "Rule/SourceSelectionCriteria/SseKmsEncryptedObjects/Status": "Enabled",
        "Rule/Destination/Bucket": f"arn:aws:s3:::{mirror.bucket}",
        "Rule/Destination/EncryptionConfiguration/ReplicaKmsKeyID": "arn:aws:kms:us-east-1:123456789012:key/1",
        "Rule/DeleteMarkerReplication/Status": "Enabled",
    }


def _paths(node, above):
    here = (*above, node)
    yield here
    for child in node:
        yield from _paths(child, here)


def test_the_second_time_there_is_nothing_to_change(on_ministack):
    carry_out(plan_for(on_ministack))
    again = plan_for(on_ministack)
    assert again.changes == []
    assert plan_for(on_ministack, role="").changes == []
    changes = plan_for(on_ministack, noncurrent_days=3).changes
    assert [step.setting for step in changes] == ["lifecycle", "lifecycle"]


def test_rules_of_others_stay(stores):
    source, mirror = stores
    asked = client(source.settings)
    asked.put_bucket_lifecycle_configuration(Bucket=mirror.bucket, LifecycleConfiguration={"Rules": [OTHERS]})
    third = S3Store(f"{mirror.bucket}-2", "flights", source.settings)
    asked.create_bucket(Bucket=third.bucket)
    carry_out(plan_for((source, third)))
    carry_out(plan_for(stores))
    rules = asked.get_bucket_replication(Bucket=source.bucket)["ReplicationConfiguration"]["Rules"]
    assert [(rule["Priority"], rule["Destination"]["Bucket"]) for rule in rules] == [
        (1, f"arn:aws:s3:::{third.bucket}"),
        (2, f"arn:aws:s3:::{mirror.bucket}"),
    ]
    assert asked.get_bucket_lifecycle_configuration(Bucket=mirror.bucket)["Rules"][0] == OTHERS


def test_a_change_by_somebody_else_is_not_overwritten(on_moto):
    source, mirror = on_moto
    plan = plan_for(on_moto)
    client(source.settings).put_bucket_lifecycle_configuration(
        Bucket=mirror.bucket, LifecycleConfiguration={"Rules": [OTHERS]}
    )
    with pytest.raises(Transient, match=f"lifecycle of bucket '{mirror.bucket}'"):
        carry_out(plan)
    carry_out(plan_for(on_moto))
    rules = client(source.settings).get_bucket_lifecycle_configuration(Bucket=mirror.bucket)["Rules"]
    assert [rule["ID"] for rule in rules] == ["tidy", lifecycle_id("flights/")]


def test_a_run_that_stopped_half_way_is_taken_up(on_ministack, monkeypatch):
    put = setup_s3.Bucket.write

    def stop(self, setting, document):
        if setting == "replication":
            raise StoreError("no")
        put(self, setting, document)

    monkeypatch.setattr(setup_s3.Bucket, "write", stop)
    with pytest.raises(StoreError):
        carry_out(plan_for(on_ministack))
    monkeypatch.undo()
    plan = plan_for(on_ministack)
    assert [step.setting for step in plan.changes] == ["replication"]
    carry_out(plan)
    assert plan_for(on_ministack).changes == []


def test_the_diff_shows_each_change(on_moto):
    source, _ = on_moto
    client(source.settings).put_bucket_versioning(Bucket=source.bucket, VersioningConfiguration={"Status": "Suspended"})
    versions = next(step for step in plan_for(on_moto).changes if step.bucket.name == source.bucket)
    lines = [*versions.diff()]
    assert '-  "Status": "Suspended"' in lines
    assert '+  "Status": "Enabled"' in lines


def test_dates_in_rules_of_others_are_plain_json(on_moto):
    source, _ = on_moto
    rule = {**OTHERS, "Expiration": {"Date": "2030-01-01T00:00:00Z"}}
    client(source.settings).put_bucket_lifecycle_configuration(
        Bucket=source.bucket, LifecycleConfiguration={"Rules": [rule]}
    )
    (step,) = (s for s in plan_for(on_moto).steps if s.setting == "lifecycle" and s.bucket.name == source.bucket)
    assert step.to_json()["before"]["Rules"][0]["Expiration"]["Date"].startswith("2030-01-01")


def test_dangers_are_told(on_moto):
    source, mirror = on_moto
    asked = client(source.settings)
    asked.put_bucket_lifecycle_configuration(
        Bucket=mirror.bucket, LifecycleConfiguration={"Rules": [{**OTHERS, "Filter": {"Prefix": ""}}]}
    )
    asked.put_bucket_encryption(
        Bucket=source.bucket,
        ServerSideEncryptionConfiguration={
            "Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]
        },
    )
    deletes, encrypts = plan_for(on_moto).warnings
    assert mirror.bucket in deletes
    assert "--replica-kms-key" in encrypts
    key = "arn:aws:kms:us-east-1:123456789012:key/1"
    assert len(plan_for(on_moto, replica_key=key).warnings) == 1


def test_the_rule_is_taken_away_again(on_ministack):
    source, mirror = on_ministack
    carry_out(plan_for(on_ministack))
    source.put("data/before", b"1")
    carry_out(removal := make_removal_plan(replication_of(source.url, mirror.url), source.settings))
    assert [(step.setting, step.after) for step in removal.changes] == [("replication", None)]
    source.put("data/after", b"1")
    source.delete(["data/before"])
    assert [item.key for item in mirror.list()] == ["data/before"], "nothing arrives any more, deletes neither"
    assert make_removal_plan(replication_of(source.url, mirror.url), source.settings).changes == []
    assert [step.setting for step in plan_for(on_ministack).changes] == ["replication"]


def test_taking_a_rule_away_leaves_the_others(on_ministack):
    source, mirror = on_ministack
    third = S3Store(f"{mirror.bucket}-2", "flights", source.settings)
    client(source.settings).create_bucket(Bucket=third.bucket)
    for store in (mirror, third):
        carry_out(plan_for((source, store)))
    carry_out(make_removal_plan(replication_of(source.url, mirror.url), source.settings))
    (rule,) = client(source.settings).get_bucket_replication(Bucket=source.bucket)["ReplicationConfiguration"]["Rules"]
    assert rule["Destination"]["Bucket"] == f"arn:aws:s3:::{third.bucket}"


def test_replication_both_ways_is_warned_of(on_ministack):
    source, mirror = on_ministack
    carry_out(plan_for(on_ministack))
    (warning,) = plan_for((mirror, source)).warnings
    assert "--remove" in warning
    carry_out(make_removal_plan(replication_of(source.url, mirror.url), source.settings))
    assert plan_for((mirror, source)).warnings == ()


@pytest.mark.parametrize(
    ("source", "mirror", "words"),
    [
        ("s3://one-bucket/flights", "s3://one-bucket/flights", "both"),
        ("s3://one-bucket/flights", "s3://one-bucket/other", "both"),
        ("s3://one-bucket/flights", "s3://two-bucket/other", "s3://two-bucket/flights"),
        ("file:///tmp/flights", "s3://two-bucket/flights", "no bucket"),
        ("s3://one-bucket/flights", "file:///tmp/flights", "no bucket"),
    ],
)
def test_places_that_s3_cannot_replicate_between(source, mirror, words):
    with pytest.raises(InvalidInput, match=words):
        replication_of(source, mirror, role=ROLE)


def test_no_role(on_moto):
    with pytest.raises(InvalidInput, match="--role"):
        plan_for(on_moto, role="")


def test_another_role(on_moto):
    carry_out(plan_for(on_moto))
    with pytest.raises(PreconditionFailed, match=ROLE):
        plan_for(on_moto, role="arn:aws:iam::123456789012:role/another")


@pytest.mark.parametrize("missing", [0, 1])
def test_no_such_bucket(on_moto, missing):
    stores = [*on_moto]
    stores[missing] = S3Store("nobody-made-this-one", "flights", stores[0].settings)
    with pytest.raises(StoreError, match="'nobody-made-this-one' does not exist"):
        plan_for((stores[0], stores[1]))


@pytest.mark.parametrize(
    ("operation", "right"),
    [
        ("GetBucketVersioning", "s3:GetBucketVersioning"),
        ("GetBucketLifecycleConfiguration", "s3:GetLifecycleConfiguration"),
        ("GetBucketReplication", "s3:GetReplicationConfiguration"),
        ("PutBucketVersioning", "s3:PutBucketVersioning"),
        ("PutBucketLifecycleConfiguration", "s3:PutLifecycleConfiguration"),
        ("PutBucketReplication", "s3:PutReplicationConfiguration and iam:PassRole"),
    ],
)
def test_a_missing_right_is_named(on_moto, listen, operation, right):
    listen(on_moto[0], operation, error(403, "AccessDenied"))
    with pytest.raises(StoreError, match=right) as caught:
        carry_out(plan_for(on_moto))
    assert "said the server" not in caught.value.message


@pytest.mark.parametrize("operation", ["GetBucketReplication", "PutBucketReplication"])
@pytest.mark.parametrize(("status", "code"), [(405, "MethodNotAllowed"), (501, "NotImplemented")])
def test_a_server_that_cannot_replicate(on_moto, listen, operation, status, code):
    listen(on_moto[0], operation, error(status, code))
    with raising("unsupported", "mirror replicate"):
        carry_out(plan_for(on_moto))


# --- what was there before ---
@pytest.fixture
def as_on_aws(on_moto, monkeypatch, moto_endpoint):
    """Buckets that are reached without naming an endpoint, as AWS's are."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_endpoint)
    settings = replace(QUICK, connect_timeout=4.25)
    source, mirror = (S3Store(store.bucket, store.prefix, settings) for store in on_moto)
    return source, mirror


def test_an_empty_source_needs_no_batch_job(as_on_aws):
    plan = plan_for(as_on_aws)
    assert not plan.existing
    assert plan.batch is None
    with raising("unsupported"):
        setup_s3.start_batch(plan)


def test_the_batch_job_is_started(as_on_aws, monkeypatch):
    source, _ = as_on_aws
    source.put("data/before", b"1")
    plan = plan_for(as_on_aws)
    assert plan.batch is not None
    assert plan.batch["region"] == "us-east-1"
    control = boto3.client("s3control", region_name="us-east-1")  # type: ignore[call-overload]
    monkeypatch.setattr(replication_rules, "control_client", {"us-east-1": control}.__getitem__)
    with Stubber(control) as stub:
        stub.add_response("create_job", {"JobId": "job-1"}, plan.batch["job"])
        assert setup_s3.start_batch(plan) == "job-1"
        stub.add_client_error("create_job", "AccessDenied", "something secret")
        with pytest.raises(StoreError, match="s3:CreateJob") as caught:
            setup_s3.start_batch(plan)
    assert "secret" not in caught.value.message


def test_the_job_may_run_as_another_role(as_on_aws):
    as_on_aws[0].put("data/before", b"1")
    plan = plan_for(as_on_aws, batch_role="arn:aws:iam::210987654321:role/batch")
    assert plan.batch is not None
    assert plan.batch["job"]["AccountId"] == "210987654321"
    assert "210987654321" in plan.batch["command"]


def test_servers_other_than_aws_have_no_batch_jobs(on_moto):
    on_moto[0].put("data/before", b"1")
    plan = plan_for(on_moto)
    assert plan.existing
    assert plan.batch is None
    with raising("unsupported", "mirror replicate"):
        setup_s3.start_batch(plan)


# --- it replicates ---
def test_what_a_lake_writes_arrives_and_what_it_deletes_goes(two_buckets, tmp_path):
    source, mirror = two_buckets("ministack")
    source.put("data/before", b"the rule concerns new objects alone")
    source.delete(["data/before"])
    carry_out(plan_for((source, mirror)))
    settings = Settings.load(home=tmp_path, fsync=False, s3_endpoint_url=source.settings.endpoint_url)
    with Lake.open(settings=settings) as lake:
        repo = lake.create_repository("flights", source.url, split=Split(2, 4, 8))
        branch = repo.branch("main")
        for number in range(12):
            branch.put(f"day={number}", f"{number}".encode())
        branch.put("big", bytes(9 << 20))
        branch.commit("days")
    written = {item.key: item.etag for item in source.list()}
    assert {item.key: item.etag for item in mirror.list() if not item.key.startswith("_lakefs/probe/")} == written
    assert any(key.startswith("_lakefs/metaranges/") for key in written)
    doomed = next(key for key in written if key.startswith("data/"))
    assert source.delete([doomed]) == []
    assert doomed not in {item.key for item in mirror.list()}
    outside = S3Store(source.bucket, "elsewhere", source.settings)
    outside.put("data/x", b"1")
    assert not [*S3Store(mirror.bucket, "elsewhere", source.settings).list()]
