"""Bodies in chunks: the examples of Amazon's manual, every way to spoil one, and what a branch holds afterwards."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import zlib
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Botos
from pyarrow.fs import S3FileSystem
from support.served import KEYS, lake

from lakeops import Lake, Repository
from lakeops.gateway.answers import Refused
from lakeops.gateway.chunks import Chunks, chunks_of
from lakeops.gateway.signature import S3Request, Seed, verify
from lakeops.model.records import Credentials

__all__ = ["lake"]

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
NOW = datetime(2013, 5, 24, tzinfo=UTC)
DATA = b"a" * 66560
PAYLOAD = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
UNSIGNED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
MANUAL = {
    "content-encoding": "aws-chunked",
    "content-length": "66824",
    "host": "s3.amazonaws.com",
    "x-amz-content-sha256": PAYLOAD,
    "x-amz-date": "20130524T000000Z",
    "x-amz-decoded-content-length": "66560",
    "x-amz-storage-class": "REDUCED_REDUNDANCY",
}
SIGNATURES = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)


def chunked(signatures: tuple[str, ...], end: bytes = b"\r\n", data: bytes = DATA) -> bytes:
    """The manual's body: 64 KiB, 1 KiB, and the empty chunk."""
    pieces = (data[:65536], data[65536:], b"")
    headers = [
        f"{len(piece):x};chunk-signature={name}\r\n".encode() for piece, name in zip(pieces, signatures, strict=True)
    ]
    return b"".join((headers[0], pieces[0], b"\r\n", headers[1], pieces[1], b"\r\n", headers[2], end))


@pytest.fixture
def seed() -> Seed:
    """The effect of the manual's request."""
    scope = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
    signature = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    given = f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders={';'.join(MANUAL)},Signature={signature}"
    request = S3Request("PUT", "/examplebucket/chunkObject.txt", [], [*MANUAL.items(), ("authorization", given)])
    return verify(request, Credentials("AKIAIOSFODNN7EXAMPLE", SECRET), NOW)


def taken(chunks: Chunks | None, body: bytes, step: int) -> bytes:
    assert chunks is not None
    found = b"".join(chunks.feed(body[at : at + step]) for at in range(0, len(body), step))
    chunks.end()
    return found


def code(work: Callable[[], object]) -> str:
    with pytest.raises(Refused) as refused:
        work()
    return refused.value.code


@pytest.mark.parametrize("step", [1, 7, 65536, 1 << 20])
def test_the_manuals_body_however_it_is_cut(seed: Seed, step: int) -> None:
    assert taken(chunks_of(MANUAL, seed), chunked(SIGNATURES), step) == DATA


def test_the_manuals_body_with_a_signed_checksum_behind_it(seed: Seed) -> None:
    first = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    signatures = (
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    )
    last = "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
    headers = {**MANUAL, "x-amz-content-sha256": f"{PAYLOAD}-TRAILER", "x-amz-trailer": "x-amz-checksum-crc32c"}
    here = Seed(first, seed.timestamp, seed.scope, seed.sign)
    for checksum, wrong in (("sOO8/Q==", None), ("sOO8/A==", "SignatureDoesNotMatch")):
        for separator in ("\r\n", "\n\r\n"):  # as programs send it, and as the manual prints it
            body = chunked(signatures, f"x-amz-checksum-crc32c:{checksum}{separator}{last}".encode())
            if wrong is None:
                assert taken(chunks_of(headers, here), body, 100) == DATA
            else:
                assert code(lambda body=body: taken(chunks_of(headers, here), body, 100)) == wrong


def test_nothing_of_a_signed_body_can_be_changed(seed: Seed) -> None:
    def refused(body: bytes) -> str:
        return code(lambda: taken(chunks_of(MANUAL, seed), body, 4096))

    assert refused(chunked(SIGNATURES, data=DATA[:-1] + b"b")) == "SignatureDoesNotMatch"
    assert refused(chunked((SIGNATURES[0], SIGNATURES[2], SIGNATURES[2]))) == "SignatureDoesNotMatch"
    assert refused(chunked((*SIGNATURES[:2], "0" * 64))) == "SignatureDoesNotMatch"
    body = chunked(SIGNATURES)
    second = body.index(b"400;")
    assert refused(body[second:]) == "SignatureDoesNotMatch"  # the first chunk is left out
    assert refused(body[:second]) == "IncompleteBody"
    assert refused(body[:-90]) == "IncompleteBody"
    assert refused(body[:second] + b"0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n") == "SignatureDoesNotMatch"
    assert refused(body + b"more\r\n") == "InvalidRequest"
    assert refused(body.replace(b";chunk-signature=" + SIGNATURES[1].encode(), b"")) == "InvalidRequest"
    assert refused(b"x" * 10_000) == "InvalidRequest"
    assert refused(b"fffffffffff" + body[5:]) == "IncompleteBody"  # no more is taken than was announced
    assert refused(DATA) == "InvalidRequest"


def test_kinds_of_bodies_that_are_not_known(seed: Seed) -> None:
    assert code(lambda: chunks_of({**MANUAL, "x-amz-content-sha256": "STREAMING-X"}, seed)) == "NotImplemented"
    assert code(lambda: chunks_of({**MANUAL, "x-amz-content-sha256": "0" * 64}, seed)) == "InvalidRequest"
    assert code(lambda: chunks_of({**MANUAL, "x-amz-decoded-content-length": "?"}, seed)) == "MissingContentLength"
    unknown = {**MANUAL, "x-amz-content-sha256": UNSIGNED, "x-amz-trailer": "x-amz-checksum-own"}
    assert code(lambda: chunks_of(unknown, seed)) == "NotImplemented"
    assert chunks_of({"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}, seed) is None


SUMS = {
    "crc32": base64.b64encode(zlib.crc32(b"123456789").to_bytes(4, "big")).decode(),
    "crc32c": base64.b64encode(0xE3069283.to_bytes(4, "big")).decode(),
    "crc64nvme": base64.b64encode(0xAE8B14860A799888.to_bytes(8, "big")).decode(),
    "sha1": base64.b64encode(hashlib.sha1(b"123456789").digest()).decode(),
    "sha256": base64.b64encode(hashlib.sha256(b"123456789").digest()).decode(),
}


@pytest.mark.parametrize("kind", SUMS)
def test_checksums_behind_a_body_without_signatures(seed: Seed, kind: str) -> None:
    name = f"x-amz-checksum-{kind}"
    headers = {"x-amz-content-sha256": UNSIGNED, "x-amz-trailer": name, "x-amz-decoded-content-length": "9"}

    def body(data: bytes = b"123456789", trailer: str = f"{name}:{SUMS[kind]}") -> bytes:
        return b"4\r\n" + data[:4] + b"\r\n5\r\n" + data[4:] + f"\r\n0\r\n{trailer}\r\n\r\n".encode()

    assert taken(chunks_of(headers, seed), body(), 3) == b"123456789"
    assert code(lambda: taken(chunks_of(headers, seed), body(b"123456780"), 3)) == "BadDigest"
    assert code(lambda: taken(chunks_of(headers, seed), body(trailer="x-amz-other:1"), 3)) == "MalformedTrailerError"
    assert code(lambda: taken(chunks_of(headers, seed), body(trailer=""), 3)) == "MalformedTrailerError"


# --- through a gateway ---


@pytest.fixture
def repo(lake: Lake) -> Repository:
    return lake.create_repository("shop")


@pytest.fixture
def address(lake: Lake, serve: Callable[..., str]) -> str:
    return serve(lake, KEYS, write=True).removeprefix("http://")


def send(address: str, path: str, data: bytes, *, spoil: int | None = None) -> tuple[int, bytes]:
    """Send an object in signed chunks of 64 KiB; the contents of one of them are not what was signed."""
    headers = {"host": address, "content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(len(data))}
    request = AWSRequest("PUT", f"http://{address}{path}", headers=headers)

    class Signer(S3SigV4Auth):
        def payload(self, _: AWSRequest) -> str:
            return PAYLOAD

        def _modify_request_before_signing(self, request: AWSRequest) -> None:
            super()._modify_request_before_signing(request)
            request.headers.replace_header("x-amz-content-sha256", PAYLOAD)

    signer = Signer(Botos(KEYS.access_key, KEYS.secret_key), "s3", "us-east-1")
    signer.add_auth(request)
    stamp = request.context["timestamp"]
    key = f"AWS4{KEYS.secret_key}".encode()
    for word in (stamp[:8], "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    previous, body = request.headers["Authorization"].rpartition("Signature=")[2], b""
    pieces = [*(data[at : at + 65536] for at in range(0, len(data), 65536)), b""]
    for number, piece in enumerate(pieces):
        hashes = hashlib.sha256().hexdigest(), hashlib.sha256(piece).hexdigest()
        text = "\n".join(("AWS4-HMAC-SHA256-PAYLOAD", stamp, signer.credential_scope(request), previous, *hashes))
        previous = hmac.digest(key, text.encode(), "sha256").hex()
        sent = b"!" + piece[1:] if number == spoil else piece
        body += f"{len(piece):x};chunk-signature={previous}\r\n".encode() + sent + b"\r\n"
    connection = http.client.HTTPConnection(address)
    connection.request("PUT", path, body, dict(request.headers.items()))
    answer = connection.getresponse()
    said = answer.status, answer.read()
    connection.close()
    return said


def test_a_signed_body_is_staged_and_a_spoilt_one_leaves_nothing(repo: Repository, address: str) -> None:
    data = bytes(range(256)) * 20_000  # more than is kept in memory
    assert send(address, "/shop/main/big", data)[0] == 200
    assert repo.ref("main").read("big") == data
    assert send(address, "/shop/main/empty", b"")[0] == 200
    for spoil in (0, 40, 78):
        status, said = send(address, "/shop/main/spoilt", data, spoil=spoil)
        assert (status, b"<Code>SignatureDoesNotMatch</Code>" in said) == (403, True)
    assert [entry.path for entry in repo.ref("main").list()] == ["big", "empty"]


def test_pyarrow_writes(repo: Repository, address: str, no_home: None) -> None:
    filesystem = S3FileSystem(
        endpoint_override=address, scheme="http", access_key=KEYS.access_key, secret_key=KEYS.secret_key
    )
    data = bytes(range(256)) * 50_000
    with filesystem.open_output_stream("shop/main/written.bin") as file:
        file.write(data)
    assert repo.ref("main").read("written.bin") == data
    assert filesystem.open_input_file("shop/main/written.bin").readall() == data
    filesystem.delete_file("shop/main/written.bin")
    assert repo.ref("main").find("written.bin") is None
