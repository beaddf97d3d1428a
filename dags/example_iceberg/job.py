"""A Spark job: write one day of orders and of their lines into two Iceberg tables. A day that is there is replaced.

``python job.py URI WAREHOUSE DAY [lost]`` with a Spark that has ``iceberg-spark-runtime`` on its class path, and the
gateway's ``KEY:SECRET`` in CATALOG_CREDENTIAL. It knows nothing of lakeops.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

uri, warehouse, day, *damage = sys.argv[1:]
catalog = {
    "": "org.apache.iceberg.spark.SparkCatalog",
    ".type": "rest",
    ".uri": f"{uri}/iceberg",
    ".oauth2-server-uri": f"{uri}/iceberg/v1/oauth/tokens",
    ".credential": os.environ["CATALOG_CREDENTIAL"],
    ".warehouse": warehouse,
}
builder = SparkSession.builder.appName("orders of " + day)
builder = builder.config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
for name, value in catalog.items():
    builder = builder.config(f"spark.sql.catalog.shop{name}", value)
spark = builder.getOrCreate()

lines = spark.range(150 if damage else 200).selectExpr(
    "id DIV 2 AS id", "id % 2 AS number", "10 + 10 * (id % 2) AS amount"
)
spark.sql("CREATE NAMESPACE IF NOT EXISTS shop.web")
for table, rows in (("orders", spark.range(100).selectExpr("id", "30L AS amount")), ("lines", lines)):
    columns = ", ".join(f"{name} BIGINT" for name in rows.columns)
    spark.sql(f"CREATE TABLE IF NOT EXISTS shop.web.{table} ({columns}, day DATE) USING iceberg PARTITIONED BY (day)")
    rows.withColumn("day", lit(day).cast("date")).writeTo(f"shop.web.{table}").overwritePartitions()
spark.stop()
