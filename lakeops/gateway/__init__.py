"""An S3 endpoint over refs: ``s3://REPO/REF/PATH`` for programs that know S3 and nothing of lakeops.

Buckets are repositories, and a key begins with a ref. The application keeps three things true:

* it writes only where it was told to, and only objects to staging areas: it commits, moves and merges nothing;
* every body comes through lakeops' checked reads, so contents that are not what was recorded never look whole;
* where keys are set, a request without a valid signature learns nothing, not even whether a repository exists.
"""
