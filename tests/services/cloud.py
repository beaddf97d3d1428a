"""Stores through obstore: in memory, and on Azurite where it runs. A plugin, as ``services.s3`` is."""

import os
import uuid
from dataclasses import replace

import pytest
from services.azure import make_container
from services.s3 import QUICK

from lakeops.store.base import ObjectStore

CLOUD_KINDS = ["memory", pytest.param("azure", marks=pytest.mark.azure)]


@pytest.fixture(scope="session")
def container():
    """A container of this run."""
    endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT")
    if not endpoint:
        pytest.skip("AZURE_STORAGE_ENDPOINT names no server")
    name = f"lakeops-test-{uuid.uuid4().hex[:12]}"
    make_container(endpoint, name)
    return name


@pytest.fixture
def make_cloud(request):
    """A fresh prefix of a kind of server."""

    def make(kind: str) -> ObjectStore:
        from support.in_memory import InMemory

        from lakeops.store.cloud import CloudStore

        settings, prefix = replace(QUICK), f"t/{uuid.uuid4().hex}"
        if kind == "memory":
            return InMemory("gs", "in-memory", prefix, settings)
        return CloudStore("az", request.getfixturevalue("container"), prefix, settings)

    return make
