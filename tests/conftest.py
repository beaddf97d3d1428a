"""What every part's tests share."""

pytest_plugins = ["support.s3_servers"]
