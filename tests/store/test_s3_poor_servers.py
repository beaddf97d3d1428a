"""Servers that do not do all of S3, as some do not."""

from __future__ import annotations

import io

import pytest
from support.errors import has_kind
from support.http_answers import answer, error, listing, lost

from lakeops.model.errors import AlreadyExists, InvalidPath, LakeopsError, StoreError, StoreUnavailable
from lakeops.store.base import MIN_PART_BYTES


class TestPoorServers:
    """Servers that do not do all of S3."""

    def test_two_conditional_writes_at_once(self, play):
        store, answers = play("PutObject", error(409, "ConditionalRequestConflict"), None)
        store.put("k", b"x", if_absent=True)
        assert len(answers.requests) == 2
        store, answers = play("PutObject", lambda _: error(409, "ConditionalRequestConflict"), max_attempts=3)
        with pytest.raises(StoreUnavailable):
            store.put("k", b"x", if_absent=True)
        assert len(answers.requests) == 3

    def test_no_conditional_writes(self, play):
        def refuse(request):
            return error(501, "NotImplemented") if "If-None-Match" in request.headers else None

        store, _ = play("PutObject", refuse, max_attempts=1)
        store.put("k", b"one", if_absent=True)
        with pytest.raises(AlreadyExists):
            store.put("k", b"two", if_absent=True)
        assert store.get("k") == b"one"
        found = store.probe()
        assert not found.conditional_put
        assert any("conditional" in note for note in found.notes)

    def test_no_conditional_swaps(self, play):
        def refuse(request):
            return error(501, "NotImplemented") if {"If-None-Match", "If-Match"} & set(request.headers) else None

        store, _ = play("PutObject", refuse, max_attempts=1)
        assert store.swap("k", b"one", expected=None)
        assert not store.swap("k", b"two", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert store.get("k") == b"two"

    @pytest.mark.parametrize(("status", "code"), [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")])
    def test_a_swap_that_came_too_late(self, play, status, code):
        store, _ = play("PutObject", error(status, code), None)
        assert not store.swap("k", b"one", expected=None)
        assert store.swap("k", b"one", expected=None)

    def test_a_server_that_knows_the_bare_etag_alone(self, play):
        def refuse(request):
            quoted = '"' in str(request.headers.get("If-Match", ""))
            return error(412, "PreconditionFailed") if quoted else None

        store, answers = play("PutObject", refuse)
        assert store.swap("k", b"one", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert "If-Match" in answers.requests[-1].headers
        assert not store.swap("k", b"three", expected=b"one")
        assert store.get("k") == b"two"

    def test_a_server_that_refuses_every_condition(self, play):
        def refuse(request):
            return error(412, "PreconditionFailed") if "If-Match" in request.headers else None

        store, _ = play("PutObject", refuse)
        assert store.swap("k", b"one", expected=None)
        assert store.swap("k", b"two", expected=b"one")
        assert not store.swap("k", b"three", expected=b"one")
        assert store.get("k") == b"two"

    def test_a_swap_whose_answer_was_lost(self, play):
        store, answers = play("PutObject", lost, None)
        assert store.swap("k", b"one", expected=None)
        assert len(answers.requests) == 2
        assert store.get("k") == b"one"

    def test_no_conditional_end_of_an_upload(self, play):
        def refuse(request):
            return error(400, "InvalidArgument") if "If-None-Match" in request.headers else None

        store, answers = play("CompleteMultipartUpload", refuse)
        data = bytes(MIN_PART_BYTES + 1)
        store.put("k", io.BytesIO(data), if_absent=True)
        assert len(answers.requests) == 2
        with pytest.raises(AlreadyExists):
            store.put("k", io.BytesIO(data), if_absent=True)

    def test_conditions_are_ignored(self, make_s3, on_event):
        store = make_s3("moto")
        on_event(store, "before-call.s3.PutObject", _drop_condition)
        found = store.probe()
        assert not found.conditional_put
        assert found.range_reads
        assert list(store.list()) == []

    @pytest.mark.parametrize(
        ("status", "code"), [(501, "NotImplemented"), (405, "MethodNotAllowed"), (400, "MalformedXML")]
    )
    def test_no_batch_deletes(self, play, status, code):
        store, _ = play("DeleteObjects", lambda _: error(status, code))
        for key in ("a", "b", "c"):
            store.put(key, b"")
        assert store.delete(["a", "c"]) == []
        assert [item.key for item in store.list()] == ["b"]
        assert not store.probe().batch_delete
        assert [item.key for item in store.list()] == ["b"]

    def test_batch_deletes_carry_the_digest_that_older_servers_want(self, play):
        store, answers = play("DeleteObjects", None)
        store.delete(["a"])
        assert len(answers.requests[0].headers["Content-MD5"]) == 24

    def test_keys_that_a_batch_refuses(self, play):
        body = (
            b"<DeleteResult><Error><Key>%s/a</Key><Code>AccessDenied</Code><Message>m</Message></Error></DeleteResult>"
        )
        store, answers = play("DeleteObjects", None)
        answers.turns = [lambda _: answer(200, body % store.prefix.encode())]
        [failure] = store.delete(["a", "b"])
        assert (failure.key, failure.reason) == ("a", "AccessDenied")

    def test_one_by_one_deletes_report_too(self, play):
        store, _ = play("DeleteObject", lambda _: error(403, "AccessDenied"))
        [failure] = store.delete(["a\x01b"])
        assert (failure.key, failure.reason) == ("a\x01b", "AccessDenied")
        store, _ = play("DeleteObject", lambda _: error(500, "InternalError"), max_attempts=1)
        with pytest.raises(StoreUnavailable):
            store.delete(["a\x01b"])

    @pytest.mark.parametrize("names", [("{p}b", "{p}a"), ("{p}a", "{p}a")])
    def test_listings_that_cannot_be_trusted(self, play, names):
        store, answers = play("ListObjectsV2", None)
        answers.turns = [lambda _: listing(*(name.format(p=store.prefix + "/") for name in names))]
        with pytest.raises(StoreError, match="does not list names in byte order"):
            list(store.list())

    def test_a_folder_marker_is_no_object(self, play):
        store, answers = play("ListObjectsV2", None)
        answers.turns = [lambda _: listing(store.prefix + "/", store.prefix + "/a")]
        assert [item.key for item in store.list()] == ["a"]

    def test_what_a_server_cannot_do(self, play):
        store, _ = play("GetObject", lambda _: error(501, "NotImplemented"), max_attempts=1)
        with pytest.raises(LakeopsError, match="NotImplemented", check=has_kind("unsupported")):
            store.get("k")
        store, _ = play("PutObject", lambda _: error(400, "KeyTooLongError"))
        with pytest.raises(InvalidPath):
            store.put("k", b"")
        store, _ = play("PutObject", lambda _: error(400, "EntityTooLarge"))
        with pytest.raises(StoreError, match="EntityTooLarge"):
            store.put("k", b"")


def _drop_condition(params, **_):
    params["headers"].pop("If-None-Match", None)
