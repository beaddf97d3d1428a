from support.opened_catalogs import catalog, database_url, empty, opened, postgres_url, shared_postgres_url, sqlite_url

__all__ = ["catalog", "database_url", "empty", "opened", "postgres_url", "shared_postgres_url", "sqlite_url"]
