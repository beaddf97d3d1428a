"""The transactional seam: refs, commits, staging, reflog. SQLModel on SQLite or PostgreSQL."""
