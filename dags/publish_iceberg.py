"""Publish a day of two Iceberg tables: write both on a branch, check them by SQL, ask a person, and merge.

Readers of main see both tables with the day or both without it, with whatever engine they read. A Spark job writes
where the parameter ``spark`` names a Python that has Spark with Iceberg. Otherwise pyiceberg does.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, dag, task

from lakeops.airflow.publish import WriteAuditPublish

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakeops.lake import Ref

JOB = Path(__file__).resolve().with_name("example_iceberg") / "job.py"
RULES = {
    "every order has lines": "SELECT count(*) FROM orders ANTI JOIN lines USING (id)",
    "every line has an order": "SELECT count(*) FROM lines ANTI JOIN orders USING (id)",
    "amounts are those of the lines": "SELECT count(*) FROM (SELECT id, sum(amount) AS total FROM lines GROUP BY id) "
    "JOIN orders USING (id) WHERE total != amount",
}


def tables_at(repository: str, ref: str) -> Catalog:
    """The tables of a ref."""
    from pyiceberg.catalog import load_catalog

    implementation = {"py-catalog-impl": "lakeops.iceberg.RefCatalog"}
    return load_catalog("shop", **implementation, warehouse=f"lakefs://{repository}/{ref}/warehouse")


def write_with_spark(python: str, repository: str, branch: str, day: str, damage: list[str]) -> None:
    """Run the Spark job. It reaches the catalog through a gateway that lives as long as the job."""
    import os
    import subprocess

    from lakeops.airflow.hook import LakeopsHook
    from lakeops.gateway.app import serving

    with LakeopsHook().get_conn() as lake, serving(lake, write=True) as options:
        secret = f"{options['aws_access_key_id']}:{options['aws_secret_access_key']}"
        command = [python, str(JOB), options["aws_endpoint_url"], f"{repository}/{branch}/warehouse", day, *damage]
        subprocess.run(command, env={**os.environ, "CATALOG_CREDENTIAL": secret}, check=True)


def write_with_pyiceberg(repository: str, branch: str, day: str, damage: list[str]) -> None:
    """Do what the Spark job does."""
    import pyarrow as pa
    from pyiceberg.expressions import EqualTo

    def rows(**columns: list[int]) -> pa.Table:
        whole = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        return whole.append_column("day", pa.array([date.fromisoformat(day)] * whole.num_rows, pa.date32()))

    lines = range(150 if damage else 200)
    tables = {
        "orders": rows(id=list(range(100)), amount=[30] * 100),
        "lines": rows(
            id=[one // 2 for one in lines],
            number=[one % 2 for one in lines],
            amount=[10 + 10 * (one % 2) for one in lines],
        ),
    }
    catalog = tables_at(repository, branch)
    catalog.create_namespace_if_not_exists("web")
    for name, data in tables.items():
        table = catalog.create_table_if_not_exists(f"web.{name}", data.schema)
        table.overwrite(data, EqualTo("day", day))


@dag(
    schedule=None,
    max_active_runs=1,  # both tables change with each day, and two branches that change one table conflict
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    params={
        "day": Param("2026-01-01", type="string", format="date", title="Day"),
        "repository": Param("shop", type="string", minLength=3, title="Repository"),
        "spark": Param(
            "",
            type="string",
            title="Python with Spark and Iceberg",
            description="The interpreter that runs the Spark job. Empty: pyiceberg writes.",
        ),
        "damage": Param(
            "none",
            type="string",
            enum=["none", "lost"],
            title="Damage",
            description="Lose lines, to see the check stop it.",
        ),
    },
    tags=["lakeops", "example"],
    doc_md=__doc__,
)
def publish_iceberg() -> None:
    """Write two tables to a branch of the run's own, check and show them, publish both at once."""
    with WriteAuditPublish(
        repo="{{ params.repository }}",
        destination="main",
        message="Publish orders and lines of {{ params.day }}",
        approval=True,
        prefix_group_id=False,
    ) as publish:

        @task
        def write(branch: str, params: dict[str, Any]) -> None:
            """Write both tables on the branch."""
            what = (params["repository"], branch, params["day"], [params["damage"]] * (params["damage"] != "none"))
            if params["spark"]:
                write_with_spark(params["spark"], *what)
            else:
                write_with_pyiceberg(*what)

        @publish.check
        def audit(ref: Ref, repository: str, day: str) -> list[str]:
            """The rules that the day breaks in the commit's tables."""
            import duckdb
            from pyiceberg.expressions import EqualTo

            catalog = tables_at(repository, ref.id)
            with duckdb.connect() as database:
                for name in ("orders", "lines"):
                    database.register(name, catalog.load_table(f"web.{name}").scan(EqualTo("day", day)).to_arrow())
                found = {rule: database.execute(query).fetchall()[0][0] for rule, query in RULES.items()}
            return [f"{rule}: {number} do not" for rule, number in found.items() if number]

        write(publish.branch)
        audit("{{ params.repository }}", "{{ params.day }}")


publish_iceberg()
