"""The catalog: refs, commits, staged rows and the reflog in transactions, by SQLModel on SQLite or PostgreSQL."""
