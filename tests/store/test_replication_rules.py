"""The documents that set replication up: every field, and nothing of anybody else's touched."""

import json
import re
import shlex

import botocore.session
import pytest
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.store.s3.replication_rules import (
    Replication,
    account_of,
    batch_command,
    batch_job,
    bucket_arn,
    documents,
    lifecycle_dangers,
    lifecycle_id,
    merged_lifecycle,
    merged_replication,
    merged_versioning,
    replicates_back,
    replication_id,
    replication_rule,
    role_policy,
    terraform,
    trust_policy,
    without_replication,
)

ROLE = "arn:aws:iam::123456789012:role/service/replicate"
OTHER_ROLE = "arn:aws:iam::123456789012:role/other"
WISH = Replication("here", "there", "flights/", ROLE, noncurrent_days=9)

FOREIGN_RULE = {
    "ID": "of somebody else",
    "Priority": 7,
    "Status": "Enabled",
    "Filter": {"And": {"Prefix": "logs/", "Tags": [{"Key": "a", "Value": "b"}]}},
    "DeleteMarkerReplication": {"Status": "Disabled"},
    "Destination": {"Bucket": "arn:aws:s3:::elsewhere", "StorageClass": "STANDARD_IA"},
}
FOREIGN_LIFECYCLE = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 3}}
KMS = "arn:aws:kms:eu-west-1:123456789012:key/1"


def fits(service, operation, **params):
    """Whether the AWS model of an operation takes these parameters, exactly."""
    shape = botocore.session.get_session().get_service_model(service).operation_model(operation).input_shape
    report = ParamValidator().validate(params, shape)
    assert not report.has_errors(), report.generate_report()


def test_replicas_under_a_key_of_their_own():
    rule = replication_rule(Replication("here", "there", "", ROLE, replica_key=KMS), 1)
    assert rule["SourceSelectionCriteria"] == {"SseKmsEncryptedObjects": {"Status": "Enabled"}}
    assert rule["Destination"]["EncryptionConfiguration"] == {"ReplicaKmsKeyID": KMS}
    assert rule["Filter"] == {"Prefix": ""}


def test_arns_are_of_the_roles_partition():
    china = "arn:aws-cn:iam::123456789012:role/r"
    assert bucket_arn("b", china) == "arn:aws-cn:s3:::b"
    assert bucket_arn("b") == "arn:aws:s3:::b"
    assert account_of(ROLE) == "123456789012"


@pytest.mark.parametrize("prefix", ["", "flights/", "a/b/ü and spaces/", "x" * 511 + "/"])
@pytest.mark.parametrize("key", ["", KMS])
def test_aws_takes_the_documents(prefix, key):
    wish = Replication("here", "there", prefix, ROLE, replica_key=key)
    replication = merged_replication({"Role": ROLE, "Rules": [FOREIGN_RULE]}, wish)
    fits("s3", "PutBucketReplication", Bucket="here", ReplicationConfiguration=replication)
    lifecycle = merged_lifecycle({"Rules": [FOREIGN_LIFECYCLE]}, wish)
    fits("s3", "PutBucketLifecycleConfiguration", Bucket="here", LifecycleConfiguration=lifecycle)
    fits("s3control", "CreateJob", **batch_job(wish, ROLE, "token"))
    assert all(len(rule["ID"]) <= 255 for rule in (*replication["Rules"], *lifecycle["Rules"]))


def test_ids_tell_prefixes_and_destinations_apart():
    wishes = [Replication("here", there, prefix) for there in ("b1", "b2") for prefix in ("", "a/", "a-/", "a/b/")]
    assert len({replication_id(wish) for wish in wishes}) == len(wishes)
    assert len({lifecycle_id(wish.prefix) for wish in wishes}) == 4


def test_other_rules_stay_as_they_are():
    merged = merged_replication({"Role": ROLE, "Rules": [FOREIGN_RULE]}, WISH)
    assert merged["Rules"] == [FOREIGN_RULE, replication_rule(WISH, 8)]
    lifecycle = {"Rules": [FOREIGN_LIFECYCLE], "TransitionDefaultMinimumObjectSize": "varies_by_storage_class"}
    merged = merged_lifecycle(lifecycle, WISH)
    assert merged["Rules"][0] == FOREIGN_LIFECYCLE
    assert merged["TransitionDefaultMinimumObjectSize"] == "varies_by_storage_class"
    assert merged_versioning({"Status": "Suspended", "MFADelete": "Disabled"}) == {
        "Status": "Enabled",
        "MFADelete": "Disabled",
    }


rules = st.builds(
    lambda number, priority, tagged: {
        **FOREIGN_RULE,
        "ID": f"rule {number}",
        "Priority": priority,
        **({} if tagged else {"Filter": {"Prefix": f"{number}/"}}),
    },
    st.integers(0, 99),
    st.integers(0, 5),
    st.booleans(),
)


@given(found=st.lists(rules, max_size=4, unique_by=lambda rule: rule["ID"]), days=st.integers(1, 30), at=st.integers(0))
def test_merging_is_idempotent_and_adds_one_rule(found, days, at):
    wish = Replication("here", "there", "flights/", ROLE, noncurrent_days=days)
    once = merged_replication({"Role": ROLE, "Rules": found}, wish)
    assert merged_replication(once, wish) == once
    moved = once["Rules"][at % len(once["Rules"]) :] + once["Rules"][: at % len(once["Rules"])]
    assert merged_replication({**once, "Rules": moved}, wish)["Rules"] == moved
    assert [rule for rule in once["Rules"] if rule["ID"] != replication_id(wish)] == found
    own = next(rule for rule in once["Rules"] if rule["ID"] == replication_id(wish))
    assert all(own["Priority"] > rule["Priority"] for rule in found)
    lifecycle = merged_lifecycle(merged_lifecycle({"Rules": found}, WISH), wish)
    assert lifecycle == merged_lifecycle(lifecycle, wish)
    assert lifecycle["Rules"][:-1] == found


@given(found=st.lists(rules, max_size=4, unique_by=lambda rule: rule["ID"]))
def test_removing_takes_our_rule_alone(found):
    added = merged_replication({"Role": ROLE, "Rules": found}, WISH)
    left = without_replication(added, WISH)
    assert left == ({"Role": ROLE, "Rules": found} if found else None)
    assert without_replication(left, WISH) == left


@pytest.mark.parametrize(
    ("prefix", "destination", "status", "expected"),
    [
        ("flights/", "here", "Enabled", True),
        ("", "here", "Enabled", True),
        ("flights/data/", "here", "Enabled", True),
        ("flights/", "here", "Disabled", False),
        ("flights/", "elsewhere", "Enabled", False),
        ("weather/", "here", "Enabled", False),
    ],
)
def test_two_buckets_that_replicate_to_each_other_are_noticed(prefix, destination, status, expected):
    back = Replication("there", destination, prefix, ROLE)
    found = {"Role": ROLE, "Rules": [{**replication_rule(back, 1), "Status": status}]}
    assert replicates_back(found, WISH) is expected
    assert not replicates_back(None, WISH)


def test_a_rule_that_somebody_switched_off_is_put_right():
    once = merged_replication(None, WISH)
    spoilt = {**once, "Rules": [{**once["Rules"][0], "Status": "Disabled"}]}
    assert merged_replication(spoilt, WISH) == once


def test_a_priority_that_is_taken_is_not_kept():
    mine = replication_rule(WISH, 7)
    merged = merged_replication({"Role": ROLE, "Rules": [FOREIGN_RULE, mine]}, WISH)
    assert [rule["Priority"] for rule in merged["Rules"]] == [7, 8]


def test_the_buckets_own_role_serves():
    merged = merged_replication({"Role": ROLE, "Rules": [FOREIGN_RULE]}, Replication("here", "there", "flights/"))
    assert merged["Role"] == ROLE


@pytest.mark.parametrize(
    ("found", "wish", "error", "words"),
    [
        (None, Replication("here", "there", ""), InvalidInput, "--role"),
        ({"Role": OTHER_ROLE, "Rules": [FOREIGN_RULE]}, WISH, PreconditionFailed, OTHER_ROLE),
        (
            {"Role": ROLE, "Rules": [{"ID": "old", "Prefix": "", "Status": "Enabled", "Destination": {}}]},
            WISH,
            PreconditionFailed,
            "first format",
        ),
    ],
)
def test_what_cannot_be_merged(found, wish, error, words):
    with pytest.raises(error, match=words):
        merged_replication(found, wish)


@pytest.mark.parametrize(
    "wrong",
    [
        {"destination": "here"},
        {"role": "replicate"},
        {"role": "arn:aws:iam::1:role/x"},
        {"role": "arn:aws:iam::123456789012:user/x"},
        {"noncurrent_days": 0},
        {"replica_key": "my-key"},
    ],
)
def test_what_cannot_be_wished(wrong):
    with pytest.raises(InvalidInput):
        Replication(**{"source": "here", "destination": "there", "prefix": "", **wrong})


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}, 1),
        ({"Filter": {"Prefix": "flights/data/"}, "Expiration": {"Date": "2027-01-01"}}, 1),
        ({"Prefix": "fli", "Expiration": {"Days": 30}, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}, 2),
        ({"Filter": {"And": {"Prefix": "flights/", "Tags": []}}, "Expiration": {"Days": 30}}, 1),
        ({"Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}, 0),
        ({"Filter": {"Prefix": ""}, "Expiration": {"Days": 30}, "Status": "Disabled"}, 0),
        ({"Filter": {}, "Transitions": [{"Days": 1, "StorageClass": "STANDARD_IA"}]}, 0),
        ({"Filter": {}, "Expiration": {"ExpiredObjectDeleteMarker": True}}, 0),
    ],
)
def test_rules_that_would_delete_or_archive_live_objects_are_told_of(rule, count):
    found = {"Rules": [{"ID": "r", "Status": "Enabled", **rule}]}
    assert len([*lifecycle_dangers("here", found, "flights/")]) == count


def test_our_own_rule_is_no_danger():
    assert not [*lifecycle_dangers("here", merged_lifecycle(None, WISH), "flights/")]


def test_the_batch_job_field_by_field():
    job = batch_job(WISH, ROLE, "token")
    assert job == {
        "AccountId": "123456789012",
        "ConfirmationRequired": False,
        "Operation": {"S3ReplicateObject": {}},
        "Report": {"Enabled": False},
        "ClientRequestToken": job["ClientRequestToken"],
        "Description": "lakeops: here/flights/ to there",
        "Priority": 1,
        "RoleArn": ROLE,
        "ManifestGenerator": {
            "S3JobManifestGenerator": {
                "SourceBucket": "arn:aws:s3:::here",
                "Filter": {
                    "EligibleForReplication": True,
                    "ObjectReplicationStatuses": ["NONE", "FAILED"],
                    "KeyNameConstraint": {"MatchAnyPrefix": ["flights/"]},
                },
                "EnableManifestOutput": False,
            }
        },
    }
    assert len(job["ClientRequestToken"]) <= 64
    assert batch_job(WISH, ROLE, "token") == job != batch_job(WISH, ROLE, "another")
    whole = batch_job(Replication("here", "there", "", ROLE), ROLE, "t")
    assert "KeyNameConstraint" not in whole["ManifestGenerator"]["S3JobManifestGenerator"]["Filter"]


def test_the_batch_command_is_the_same_job():
    wish = Replication("here", "there", "it's/", ROLE)
    job = batch_job(wish, ROLE, "token")
    words = shlex.split(batch_command(job, "eu-west-1"))
    assert words[:3] == ["aws", "s3control", "create-job"]
    options = {name: words[at + 1] for at, name in enumerate(words) if name.startswith("--") and at + 1 < len(words)}
    assert options["--region"] == "eu-west-1"
    assert options["--account-id"] == job["AccountId"]
    assert options["--role-arn"] == ROLE
    assert json.loads(options["--operation"]) == job["Operation"]
    assert json.loads(options["--manifest-generator"]) == job["ManifestGenerator"]
    assert json.loads(options["--report"]) == job["Report"]
    assert "--no-confirmation-required" in words
    assert options["--client-request-token"] == job["ClientRequestToken"]


def test_what_the_role_needs():
    statements = role_policy(WISH)["Statement"]
    rights = {(action, one["Resource"]) for one in statements for action in one["Action"]}
    assert ("s3:ReplicateDelete", "arn:aws:s3:::there/flights/*") in rights
    assert ("s3:GetObjectVersionForReplication", "arn:aws:s3:::here/flights/*") in rights
    assert ("s3:InitiateReplication", "arn:aws:s3:::here/flights/*") in rights
    assert ("s3:GetReplicationConfiguration", "arn:aws:s3:::here") in rights
    assert not any(action.startswith("kms:") for action, _ in rights)
    with_key = role_policy(Replication("here", "there", "", ROLE, replica_key=KMS))["Statement"]
    assert with_key[-1] == {"Effect": "Allow", "Action": ["kms:Encrypt", "kms:GenerateDataKey"], "Resource": KMS}
    assert "batchoperations.s3.amazonaws.com" in trust_policy()["Statement"][0]["Principal"]["Service"]


# --- all of it, for those who write it themselves ---
@pytest.mark.parametrize("prefix", ["", "flights/", "a/b/ü and spaces/"])
@pytest.mark.parametrize("key", ["", KMS])
def test_what_is_printed_is_what_would_be_written(prefix, key):
    wish = Replication("here", "there", prefix, ROLE, replica_key=key)
    printed = documents(wish)
    assert printed["versioning"] == merged_versioning(None)
    assert printed["lifecycle"] == merged_lifecycle(None, wish)
    assert printed["replication"] == merged_replication(None, wish)
    assert printed["policy"] == role_policy(wish)
    assert printed["trust"] == trust_policy()


def test_a_rule_under_another_id_counts():
    """Terraform's users name their rules themselves."""
    theirs = {**replication_rule(WISH, 1), "ID": "mirror", "Priority": 12}
    found = {"Role": ROLE, "Rules": [FOREIGN_RULE, theirs]}
    assert merged_replication(found, WISH) == found
    other = {**theirs, "DeleteMarkerReplication": {"Status": "Disabled"}}
    assert len(merged_replication({"Role": ROLE, "Rules": [other]}, WISH)["Rules"]) == 2
    rules = {"Rules": [{**merged_lifecycle(None, WISH)["Rules"][0], "ID": "versions"}]}
    assert merged_lifecycle(rules, WISH) == rules
    longer = Replication("here", "there", "flights/", ROLE, noncurrent_days=10)
    assert len(merged_lifecycle(rules, longer)["Rules"]) == 2


def snake(document):
    """A document of S3's with the names that Terraform gives its fields, and single blocks for lists of one rule."""
    if isinstance(document, dict):
        names = {"ReplicaKmsKeyID": "replica_kms_key_id", "ID": "id"}
        return {
            names.get(key, re.sub(r"(?<!^)(?=[A-Z])", "_", key).lower()): snake(value)
            for key, value in document.items()
        }
    return document


@pytest.mark.parametrize("key", ["", KMS])
def test_terraform_says_the_same_field_by_field(key):
    wish = Replication("here", "there", "flights/", ROLE, noncurrent_days=9, replica_key=key)
    resources = terraform(wish)["resource"]
    (replication,) = resources["aws_s3_bucket_replication_configuration"].values()
    assert replication.pop("depends_on") == [
        f"aws_s3_bucket_versioning.{name}" for name in resources["aws_s3_bucket_versioning"]
    ]
    assert replication == {"bucket": "here", "role": ROLE, "rule": [snake(replication_rule(wish, 1))]}
    assert [*resources["aws_s3_bucket_lifecycle_configuration"].values()] == [
        {"bucket": bucket, "rule": [snake(rule) for rule in merged_lifecycle(None, wish)["Rules"]]}
        for bucket in ("here", "there")
    ]
    assert [*resources["aws_s3_bucket_versioning"].values()] == [
        {"bucket": bucket, "versioning_configuration": snake(merged_versioning(None))} for bucket in ("here", "there")
    ]
    (policy,) = resources["aws_iam_role_policy"].values()
    assert policy["role"] == "replicate"
    assert json.loads(policy["policy"]) == role_policy(wish)
    assert "aws_iam_role" not in resources


def test_terraform_makes_a_role_where_none_is_named():
    resources = terraform(Replication("here", "there", "x" * 200 + "/"))["resource"]
    ((name, role),) = resources["aws_iam_role"].items()
    assert len(role["name"]) <= 64
    assert json.loads(role["assume_role_policy"]) == trust_policy()
    (policy,) = resources["aws_iam_role_policy"].values()
    assert policy["role"] == f"${{aws_iam_role.{name}.id}}"
    (replication,) = resources["aws_s3_bucket_replication_configuration"].values()
    assert replication["role"] == f"${{aws_iam_role.{name}.arn}}"
    for kind in resources.values():
        assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", each) for each in kind), "names that Terraform takes"


def test_terraform_takes_nothing_in_a_prefix_for_an_expression():
    wish = Replication("here", "there", "a${b}%{c}/", ROLE)
    resources = terraform(wish)["resource"]
    (replication,) = resources["aws_s3_bucket_replication_configuration"].values()
    assert replication["rule"][0]["filter"] == {"prefix": "a$${b}%%{c}/"}
    (policy,) = resources["aws_iam_role_policy"].values()
    assert "arn:aws:s3:::here/a$${b}%%{c}/*" in policy["policy"]
