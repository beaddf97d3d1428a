"""Single requests and their answers, hostile ones too: ranges, conditions, names, damage, and who is served at all."""

from __future__ import annotations

import http.client
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from botocore.exceptions import ClientError
from support.errors import has_kind
from support.served import BIG, KEYS, fill, s3_client

from lakeops import Lake, Repository, Settings
from lakeops.gateway import reading
from lakeops.gateway.app import keys_of, listening
from lakeops.model.errors import InvalidInput, PreconditionFailed
from lakeops.testing import ManualClock

S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Answer:
    """An answer that was read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def code(self) -> str:
        return ET.fromstring(self.body).findtext("Code", "")


class Asker:
    """Sends a path as it is spelled. A header with several values comes in as many lines."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc

    def __call__(self, path: str, method: str = "GET", **headers: str | list[str]) -> Answer:
        connection = http.client.HTTPConnection(self.address)
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            for line in [value] if isinstance(value, str) else value:
                connection.putheader(name.replace("_", "-"), line)
        connection.endheaders()
        try:
            return Answer(connection.getresponse())
        finally:
            connection.close()


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return fill(lake)


@pytest.fixture
def ask(lake: Lake, repo: Repository, serve) -> Iterator[Asker]:
    return Asker(serve(lake))


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=5-", 5, None),
        ("bytes=-7", -7, None),
        ("bytes=2999999-9999999999", 2999999, None),
        ("bytes=0-99999999999999999999", 0, None),
    ],
)
def test_a_range_is_cut_out(ask: Asker, wanted: str, start: int, end: int | None) -> None:
    answer = ask("/shop/v1/big.bin", Range=wanted)
    part = BIG[start:end]
    assert (answer.status, answer.body) == (206, part)
    first = start % len(BIG)
    assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(part) - 1}/{len(BIG)}"
    head = ask("/shop/v1/big.bin", "HEAD", Range=wanted)
    assert (head.status, head.headers["Content-Length"], head.body) == (206, str(len(part)), b"")


@pytest.mark.parametrize("wanted", ["bytes=9-2", "bytes=-", "bytes=1-2,5-6", "lines=1-2", "bytes=a-b"])
def test_a_range_that_is_none_counts_for_nothing(ask: Asker, wanted: str) -> None:
    assert ask("/shop/v1/customers.csv", Range=wanted).status == 200


def test_a_range_behind_the_end_is_refused(ask: Asker) -> None:
    for wanted in ("bytes=22-", "bytes=-0", "bytes=18446744073709551616-"):
        answer = ask("/shop/v1/customers.csv", Range=wanted)
        assert (answer.status, answer.code, answer.headers["Content-Range"]) == (416, "InvalidRange", "bytes */22")


def test_conditions(ask: Asker) -> None:
    told = ask("/shop/v1/customers.csv", "HEAD").headers
    mark, date = told["ETag"], told["Last-Modified"]
    other, early = '"0"', "Mon, 01 Jan 1990 00:00:00 GMT"
    for status, headers in (
        (200, {"If_Match": mark}),
        (200, {"If_Match": f"{other}, {mark}", "If_Unmodified_Since": early}),
        (412, {"If_Match": other}),
        (412, {"If_Unmodified_Since": early}),
        (304, {"If_None_Match": mark}),
        (304, {"If_None_Match": "*"}),
        (200, {"If_None_Match": other, "If_Modified_Since": date}),
        (304, {"If_Modified_Since": date}),
        (200, {"If_Modified_Since": early}),
        (200, {"If_Modified_Since": "yesterday"}),
        (200, {"If_Modified_Since": "Mon Jan  1 00:00:00 1990"}),
        (304, {"If_Modified_Since": "Friday, 01-Jan-2100 00:00:00 GMT"}),
    ):
        assert ask("/shop/v1/customers.csv", **headers).status == status, headers


def test_headers_of_one_name_are_one_list(ask: Asker) -> None:
    path = "/shop/main/customers.csv"
    etag = ask(path, "HEAD").headers["ETag"]
    assert ask(path, If_None_Match=[etag, '"other"']).status == 304
    assert ask(path, If_Match=[etag, '"other"']).status == 200
    told = ask(f"{path}?attributes", x_amz_object_attributes=["ETag", "ObjectSize"])
    assert [one.tag.removeprefix(S3) for one in ET.fromstring(told.body)] == ["ETag", "ObjectSize"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/shop/main%2Fcustomers.csv", 200, ""),
        ("/shop/main~1/customers.csv", 200, ""),
        ("/shop/main%7E1/customers.csv", 200, ""),
        ("/shop/main%40/customers.csv", 200, ""),
        ("/shop/main/a+b.txt", 200, ""),
        ("/shop/main/a%252Fb.txt", 200, ""),
        ("/shop/main/../up", 200, ""),
        ("/shop/main/%2Fx", 404, "NoSuchKey"),
        ("/shop/main/../../../../etc/passwd", 404, "NoSuchKey"),
        ("/shop/main/a%00b", 400, "InvalidArgument"),
        ("/shop/main/%ff%fe", 400, "InvalidURI"),
        ("/shop/main/%ED%A0%80", 400, "InvalidURI"),
        ("/shop/main/" + "x" * 1025, 400, "InvalidArgument"),
        ("/shop/" + "~" * 5000 + "/x", 404, "NoSuchKey"),
        ("/shop/-x/%3Cscript%3E", 404, "NoSuchKey"),
        ("/SHOP/main/x", 404, "NoSuchBucket"),
        ("/..%2f..%2fetc/x/y", 404, "NoSuchBucket"),
        ("/shop?prefix=%ff", 400, "InvalidURI"),
        ("/shop?max-keys=-1", 400, "InvalidArgument"),
        ("/shop?max-keys=%D9%A3", 400, "InvalidArgument"),
        ("/shop?encoding-type=base64", 400, "InvalidArgument"),
        ("/shop?list-type=2&continuation-token=%21", 400, "InvalidArgument"),
        ("/shop?list-type=2&continuation-token=_w==", 400, "InvalidArgument"),
        ("/shop?delimiter=x", 501, "NotImplemented"),
        ("/shop?prefix=main/&delimiter=" + "x" * 17, 400, "InvalidArgument"),
        ("/shop?" + "&".join(f"x{n}=" for n in range(101)), 400, "InvalidURI"),
        ("/shop?versions", 501, "NotImplemented"),
        ("/shop/main/customers.csv?versionId=1", 501, "NotImplemented"),
        ("/shop/main/customers.csv?response-content-type=text/html", 400, "InvalidRequest"),
    ],
)
def test_names_are_taken_as_they_are(ask: Asker, path: str, status: int, code: str) -> None:
    answer = ask(path)
    assert answer.status == status
    if code:
        assert answer.code == code
        assert ask(path, "HEAD").body == b""


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(ask: Asker, method: str) -> None:
    for path in ("/", "/shop", "/shop/main/customers.csv", "/shop/main/customers.csv?uploads"):
        answer = ask(path, method)
        assert (answer.status, answer.code, answer.headers["Allow"]) == (405, "MethodNotAllowed", "GET, HEAD")
        assert b"lakeops fs upload" in answer.body


def test_hostile_keys_and_metadata_stay_what_they_are(lake: Lake, repo: Repository, ask: Asker) -> None:
    key = "hostile/\x01\x1b[2J\r\n</Key><Key>\ufffe.txt"
    metadata = {"a": "b\r\nx-evil: 1", "bad name": "x", "c:d": "y", "Who": "1", "who": "2"}
    metadata |= {"http:content-language": "de\r\nx-evil: 1", "http:set-cookie": "x"}
    repo.branch("main").put(key, b"x", metadata=metadata)
    answer = ask("/shop?list-type=2&prefix=main/hostile/&encoding-type=url")
    assert [unquote(one.text or "") for one in ET.fromstring(answer.body).iter(f"{S3}Key")] == [f"main/{key}"]
    answer = ask("/shop?list-type=2&prefix=main/hostile/")
    assert answer.body.count(b"<Key>") == 1
    assert not {*answer.body} & {0, 1, 13, 27}
    told = ask("/shop/main/hostile/%01%1B[2J%0D%0A%3C/Key%3E%3CKey%3E%EF%BF%BE.txt", "HEAD").headers
    assert told["x-amz-missing-meta"] == "5"  # their names can be no header's, or are another one's
    assert "x-evil" not in told
    assert "x-amz-meta-a" in told


def test_what_has_expired_is_not_taken_for_empty(lake: Lake, repo: Repository, clock: ManualClock, serve) -> None:
    old = repo.ref("main~1").commit_id
    repo.delete_branch("main-2")
    repo.gc.set_rules({"default_retention_days": 1, "branches": []})
    clock.advance(days=30)
    repo.branch("main").commit("Later")
    repo.gc.mark()
    ask = Asker(serve(lake))
    for path in (f"/shop/{old}/customers.csv", f"/shop?prefix={old}/"):
        answer = ask(path)
        assert (answer.status, answer.code) == (403, "InvalidObjectState")
        assert b"expired" in answer.body


def test_damage_is_never_sent_as_a_whole_object(lake: Lake, repo: Repository, ask: Asker) -> None:
    def file(path: str) -> Path:
        return Path(repo.ref("v1").stat(path).physical_address.removeprefix("file://"))

    def change(path: str, data: bytes) -> None:
        file(path).chmod(0o644)
        file(path).write_bytes(data)

    change("customers.csv", b"x" * 22)
    assert ask("/shop/v1/customers.csv").code == "InternalError"
    change("orders/day=1/part-0.csv", b"short")
    assert ask("/shop/v1/orders/day=1/part-0.csv", Range="bytes=0-1").code == "InternalError"
    file("orders/day=2/part-0.csv").unlink()
    assert ask("/shop/v1/orders/day=2/part-0.csv").code == "InternalError"  # there is such a key
    change("big.bin", BIG[:-1] + b"x")
    with pytest.raises(http.client.IncompleteRead):
        ask("/shop/v1/big.bin")


def test_a_lost_file_of_metadata_is_no_missing_key(lake: Lake, repo: Repository, serve) -> None:
    """Programs take "not found" for an empty table, and a deletion that stages nothing for one that did."""
    place = Path(urlsplit(repo.storage_namespace).path, "_lakefs/ranges")
    for file in place.iterdir():
        file.unlink()
    repo.create_branch("dev", source="v1")
    fresh = Lake(lake.catalog, lake.settings, stores=lake.stores())  # remembers no files
    with s3_client(serve(fresh, KEYS, write=True)) as s3:
        where = {"Bucket": "shop", "Key": "dev/customers.csv"}
        listed = {"Objects": [{"Key": where["Key"]}]}
        for ask in (
            lambda: s3.get_object(**where),
            lambda: s3.head_object(**where),
            lambda: s3.list_objects_v2(Bucket="shop", Prefix="dev/"),
            lambda: s3.delete_object(**where),
            lambda: s3.put_object(**where, IfNoneMatch="*", Body=b""),
            lambda: s3.copy_object(Bucket="shop", Key="dev/copy", CopySource=where),
        ):
            with pytest.raises(ClientError) as failed:
                ask()
            assert failed.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
        (error,) = s3.delete_objects(Bucket="shop", Delete=listed)["Errors"]
        assert (error["Key"], error["Code"]) == (where["Key"], "InternalError")
    assert not lake.catalog.staging.has_staged("shop", "dev")


def test_large_objects_go_out_in_pieces(repo: Repository) -> None:
    entry = repo.ref("v1").stat("big.bin")
    body = reading.contents(repo.ref("v1"), entry, reading.range_of(entry, None))
    assert not isinstance(body, bytes)
    sizes = [len(piece) for piece in body]
    assert (sum(sizes), max(sizes)) == (len(BIG), reading.PIECE)


def test_without_keys_a_page_of_the_web_learns_nothing(ask: Asker) -> None:
    for host in ("evil.example", "evil.example:9010", "127.0.0.1.evil.example", "", "[::1"):
        assert ask("/shop", Host=host).code == "AccessDenied"
    for host in ("localhost", "localhost:9010", "[::1]:1"):
        assert ask("/shop", Host=host).status == 200


def test_what_fails_is_logged_without_queries(
    lake: Lake, repo: Repository, ask: Asker, caplog: pytest.LogCaptureFixture
) -> None:
    entry = repo.ref("v1").stat("customers.csv")
    Path(entry.physical_address.removeprefix("file://")).unlink()
    assert ask("/shop/v1/customers.csv?X-Amz-Signature=sesame").status == 500
    assert "/shop/v1/customers.csv" in caplog.text
    assert "sesame" not in caplog.text


def test_only_this_machine_is_served_without_keys() -> None:
    with (
        pytest.raises(InvalidInput, match="gateway_access_key", check=has_kind("invalid_settings")),
        listening("0.0.0.0", 0, keys=None),
    ):
        pass
    with listening("0.0.0.0", 0, keys=KEYS) as opened:
        taken = opened.getsockname()[1]
        with pytest.raises(PreconditionFailed, match="cannot listen"), listening("0.0.0.0", taken, keys=KEYS):
            pass
    with pytest.raises(InvalidInput, match="cannot listen"), listening("no such host", 0, keys=KEYS):
        pass


@pytest.mark.parametrize(
    "given",
    [
        {"gateway_access_key": "reader"},
        {"gateway_secret_key": "0123456789abcdef"},
        {"gateway_access_key": "reader", "gateway_secret_key": "sesame"},
        {"gateway_access_key": "a/b", "gateway_secret_key": "0123456789abcdef"},
    ],
)
def test_keys_that_cannot_work_are_refused_and_not_repeated(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, check=has_kind("invalid_settings")) as failed:
        keys_of(Settings.load(**given))
    assert given.get("gateway_secret_key", "nothing of it") not in str(failed.value)


def test_a_clock_that_is_off_is_told(lake: Lake, repo: Repository, clock: ManualClock, serve) -> None:
    clock.advance(seconds=timedelta(days=365).total_seconds())
    ask = Asker(serve(lake, KEYS))
    signed = "AWS4-HMAC-SHA256 Credential=reader/20200101/x/s3/aws4_request, SignedHeaders=host, Signature=" + "0" * 64
    answer = ask("/shop", Authorization=signed, X_Amz_Date="20200101T000000Z")
    assert answer.code == "RequestTimeTooSkewed"
