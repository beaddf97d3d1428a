#!/bin/sh
# Runs once, when the server's directory is empty: a database and a login for Airflow, and another pair for lakeops.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" \
    --set airflow="$AIRFLOW_DB_PASSWORD" --set lakeops="$LAKEOPS_DB_PASSWORD" <<'SQL'
CREATE ROLE airflow LOGIN PASSWORD :'airflow';
CREATE DATABASE airflow OWNER airflow;
REVOKE CONNECT ON DATABASE airflow FROM PUBLIC;
CREATE ROLE lakeops LOGIN PASSWORD :'lakeops';
CREATE DATABASE lakeops OWNER lakeops;
REVOKE CONNECT ON DATABASE lakeops FROM PUBLIC;
SQL
