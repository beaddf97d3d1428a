"""``lakefs://`` as a scheme of Airflow's assets: one spelling for each place, and refusals when a DAG is read.

An asset is a branch, ``lakefs://REPO/BRANCH``, or a folder or object of one, ``lakefs://REPO/BRANCH/PATH``. What
Airflow cuts URIs at (``#``, ``?``) is escaped, and so is ``%``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from lakeops.model.errors import InvalidInput
from lakeops.model.refs import parse_ref
from lakeops.model.uris import LakeUri

if TYPE_CHECKING:
    from airflow.sdk import Asset

KEPT = "/:@!$&'()*+,;=~"
"""What a path of a URI holds unescaped."""


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """The URI in its one spelling. Airflow calls this for every asset of the scheme.

    Raises:
        ValueError: it does not name a branch, or what may be on one.
    """
    if uri.query:
        raise ValueError(f"asset URI of lakefs://{uri.netloc}: write '?' as %3F")
    try:
        place = LakeUri.parse(f"lakefs://{uri.netloc}{unquote(uri.path).rstrip('/')}")
    except InvalidInput as error:
        raise ValueError(error.message) from None
    if place.ref is None or not parse_ref(place.ref).is_name:
        raise ValueError(f"asset URI {place}: name a branch, lakefs://REPO/BRANCH")
    path = "/".join(part for part in (place.ref, place.path) if part is not None)
    return uri._replace(path="/" + quote(path, safe=KEPT))


def create_asset(*, repo: str, branch: str = "main", path: str = "", extra: dict[str, Any] | None = None) -> Asset:
    """An asset of the scheme, for Airflow's hook lineage."""
    from airflow.sdk import Asset

    where = quote("/".join(part for part in (branch, path) if part), safe=KEPT)
    return Asset(uri=f"lakefs://{repo}/{where}", extra=extra or {})


def to_openlineage(asset: Asset, lineage_context: object) -> Any:  # noqa: ANN401, ARG001 - OpenLineage need not be there
    """The asset as OpenLineage's data set; None without OpenLineage."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(namespace=f"lakefs://{uri.netloc}", name=unquote(uri.path).strip("/"))
