"""Iceberg tables on refs.

    properties = {"py-catalog-impl": "lakeops.iceberg.RefCatalog", "warehouse": "lakefs://shop/dev/tables"}
    catalog = load_catalog("shop", **properties)

``lakeops gateway`` serves the same tables to every engine that speaks Iceberg's REST protocol.
"""

from lakeops.iceberg.catalog import RefCatalog as RefCatalog
