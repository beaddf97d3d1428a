"""Pages about a lake, made on the server: the same in Airflow's web server and behind ``lakeops ui``.

The pages only read. Whatever comes from a repository is text, and what one page reads is bounded. This room knows
neither Airflow nor how somebody logs in: whoever serves the pages decides who may see them.
"""
