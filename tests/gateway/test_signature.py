"""Signatures: the examples of Amazon's own manual are accepted, and nothing that differs from them in any part."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakeops.gateway.answers import Refused
from lakeops.gateway.signature import S3Request, verify
from lakeops.model.records import Credentials

KEYS = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
NOW = datetime(2013, 5, 24, tzinfo=UTC)
SCOPE = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HEADERS = (
    ("host", "examplebucket.s3.amazonaws.com"),
    ("x-amz-content-sha256", EMPTY),
    ("x-amz-date", "20130524T000000Z"),
)


def _signed(path: str, query: list[tuple[str, str]], signature: str, *more: tuple[str, str]) -> S3Request:
    headers = (*HEADERS, *more)
    names = ";".join(sorted(name for name, _ in headers))
    given = f"AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={names},Signature={signature}"
    return S3Request("GET", path, query, (*headers, ("authorization", given)))


OBJECT = _signed(
    "/test.txt", [], "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", ("range", "bytes=0-9")
)
LISTING = _signed(
    "/", [("max-keys", "2"), ("prefix", "J")], "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
)
LIFECYCLE = _signed("/", [("lifecycle", "")], "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
PRESIGNED = S3Request(
    "GET",
    "/test.txt",
    [
        ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
        ("X-Amz-Credential", SCOPE),
        ("X-Amz-Date", "20130524T000000Z"),
        ("X-Amz-Expires", "86400"),
        ("X-Amz-SignedHeaders", "host"),
        ("X-Amz-Signature", "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"),
    ],
    [HEADERS[0]],
)


def _code(request: S3Request, now: datetime = NOW, keys: Credentials = KEYS) -> str:
    with pytest.raises(Refused) as refused:
        verify(request, keys, now)
    return refused.value.code


def _with_header(request: S3Request, name: str, value: str) -> S3Request:
    return replace(request, fields=[(key, value if key == name else old) for key, old in request.fields])


def _with_parameter(request: S3Request, name: str, value: str) -> S3Request:
    return replace(request, parameters=[(key, value if key == name else old) for key, old in request.parameters])


@pytest.mark.parametrize("request_", [OBJECT, LISTING, LIFECYCLE, PRESIGNED])
def test_the_examples_of_the_manual_are_accepted(request_: S3Request) -> None:
    verify(request_, KEYS, NOW + timedelta(minutes=14))


def test_the_order_of_parameters_and_headers_means_nothing() -> None:
    verify(replace(LISTING, parameters=LISTING.parameters[::-1], fields=LISTING.fields[::-1]), KEYS, NOW)


@pytest.mark.parametrize("request_", [OBJECT, LISTING, PRESIGNED])
def test_another_request_needs_another_signature(request_: S3Request) -> None:
    for other in (
        replace(request_, method="HEAD"),
        replace(request_, path=request_.path + "x"),
        replace(request_, parameters=[*request_.parameters, ("prefix", "K")]),
        _with_header(request_, "host", "examplebucket.s3.amazonaws.co"),
    ):
        assert _code(other) == "SignatureDoesNotMatch"
    assert _code(request_, keys=replace(KEYS, secret_key=KEYS.secret_key + "x")) == "SignatureDoesNotMatch"
    assert _code(request_, keys=replace(KEYS, access_key="OTHER")) == "InvalidAccessKeyId"


def test_signed_headers_are_covered_and_needed() -> None:
    assert _code(_with_header(OBJECT, "range", "bytes=0-10")) == "SignatureDoesNotMatch"
    assert _code(replace(OBJECT, fields=[*OBJECT.fields, ("x-amz-meta-a", "b")])) == "AccessDenied"
    authorization = OBJECT.headers["authorization"]
    assert _code(_with_header(OBJECT, "authorization", authorization.replace("host;", ""))) == "AccessDenied"


def test_old_and_early_requests_are_refused() -> None:
    for minutes in (16, -16):
        assert _code(OBJECT, NOW + timedelta(minutes=minutes)) == "RequestTimeTooSkewed"
    assert _code(PRESIGNED, NOW + timedelta(days=1, seconds=1)) == "AccessDenied"
    assert _code(PRESIGNED, NOW - timedelta(minutes=16)) == "AccessDenied"


@pytest.mark.parametrize("seconds", ["0", "604801", "-1", "1e3", "", "99999999999"])
def test_a_presigned_url_counts_for_a_second_to_a_week(seconds: str) -> None:
    request = _with_parameter(PRESIGNED, "X-Amz-Expires", seconds)
    assert _code(request) == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(OBJECT, fields=HEADERS), "AccessDenied"),
        (replace(OBJECT, fields=[("host", "x"), ("authorization", "AWS key:signature")]), "InvalidRequest"),
        (replace(OBJECT, fields=HEADERS, parameters=[("AWSAccessKeyId", "x"), ("Signature", "y")]), "InvalidRequest"),
        (_with_header(OBJECT, "authorization", "Bearer x"), "InvalidArgument"),
        (_with_header(OBJECT, "authorization", ""), "AccessDenied"),
        (_with_header(OBJECT, "authorization", "AWS4-HMAC-SHA256 Credential=a"), "AuthorizationHeaderMalformed"),
        (_with_header(OBJECT, "authorization", "AWS4-ECDSA-P256-SHA256 Credential=a"), "InvalidArgument"),
        (replace(OBJECT, fields=[("content-type", "multipart/form-data; boundary=x")]), "NotImplemented"),
        (_with_header(OBJECT, "x-amz-date", "yesterday"), "AccessDenied"),
        (_with_header(OBJECT, "x-amz-date", "20139999T000000Z"), "AccessDenied"),
        (replace(OBJECT, fields=[h for h in OBJECT.fields if h[0] != "x-amz-content-sha256"]), "InvalidRequest"),
        (_with_parameter(PRESIGNED, "X-Amz-Algorithm", "NONE"), "AuthorizationQueryParametersError"),
        (_with_parameter(PRESIGNED, "X-Amz-Credential", "a/b"), "AuthorizationHeaderMalformed"),
        (
            _with_parameter(PRESIGNED, "X-Amz-Credential", SCOPE.replace("/s3/", "/sts/")),
            "AuthorizationHeaderMalformed",
        ),
        (_with_parameter(PRESIGNED, "X-Amz-Credential", SCOPE.replace("0524", "0525")), "SignatureDoesNotMatch"),
        (_with_parameter(PRESIGNED, "X-Amz-Signature", ""), "SignatureDoesNotMatch"),
        (_with_parameter(PRESIGNED, "X-Amz-Signature", "é"), "SignatureDoesNotMatch"),
        (
            replace(PRESIGNED, parameters=[*PRESIGNED.parameters, ("X-Amz-Signature", "x")]),
            "AuthorizationQueryParametersError",
        ),
        (replace(PRESIGNED, parameters=[*PRESIGNED.parameters, ("X-Amz-Security-Token", "x")]), "InvalidToken"),
        (replace(PRESIGNED, fields=OBJECT.fields), "InvalidArgument"),
    ],
)
def test_what_is_no_signature_is_refused(request_: S3Request, code: str) -> None:
    assert _code(request_) == code
