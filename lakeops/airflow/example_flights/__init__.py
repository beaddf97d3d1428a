"""What the ``publish_flights`` DAG works with: a year of New York's flights and weather, and rules for a day of it.

Kept in the package because a DAG file cannot import its neighbours in every Airflow process. Only tasks import it.
"""
