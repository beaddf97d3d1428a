"""What the ``publish_flights`` DAG works with: a year of New York's flights and weather, and rules for a day of it.

Only tasks import it: a task's process has the DAG folder on its path, and the triggerer has not.
"""
