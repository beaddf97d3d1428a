"""Web pages about a lake, rendered on the server, for Airflow's web server and for ``lakeops ui``.

The pages only read, a page reads a bounded amount, and text from a repository is never markup. This package knows
neither Airflow nor logins: the server of the pages decides who may see them.
"""
