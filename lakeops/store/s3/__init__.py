"""Objects in a bucket of S3, or of a server that speaks its language, through boto3."""

from lakeops.store.s3.store import S3Store

__all__ = ["S3Store"]
