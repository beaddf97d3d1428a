"""What the pictures of Airflow show: forms for people, and a run that asks before it publishes."""

from __future__ import annotations

from airflow.sdk import dag

from lakeops.airflow.dags import admin_dags, gc_dag
from lakeops.airflow.publish import WriteAuditPublish

forms = admin_dags(connection="production")
collection = gc_dag(connection="production", schedule=None)


@dag(schedule=None)
def publish_day() -> None:
    """Load a day, and ask whether it may be published."""
    with WriteAuditPublish(
        repo="flights", message="Publish day 15", approval=True, lakeops_conn_id="production"
    ) as publish:

        @publish.output("flights/day=15/")
        def flights(url: str) -> None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            for part in range(3):
                table = pa.table({"origin": ["EWR", "JFK", "LGA"] * 200, "dep_delay": list(range(part, part + 600))})
                pq.write_table(table, f"{url}/part-{part}.parquet")

        @publish.output("weather/day=15/")
        def weather(url: str) -> None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"hour": list(range(24)), "wind": [3.5] * 24}), f"{url}/part-0.parquet")

        flights()
        weather()


publish_day()
