"""Pages in Airflow's web server: a repository, a ref, a commit, a difference.

What it keeps true: nobody sees a page without the right to read the connection that it is shown through, because the
page does with that connection what its reader could. Every route is a GET, and writes nothing. Whatever comes from a
repository is text: it is escaped, and the answer's headers let a browser run nothing.
"""
