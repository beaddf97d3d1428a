"""An address of every page, for the repository that ``support.damage.populate`` makes. A new route has to join."""

ADDRESSES = {
    "/": "/",
    "/_audit": "/_audit",
    "/{repository}": "/repo",
    "/{repository}/tags": "/repo/tags",
    "/{repository}/go": "/repo/go?ref=main",
    "/{repository}/search": "/repo/search?q=load",
    "/{repository}/ref/{ref}": "/repo/ref/main",
    "/{repository}/commit/{commit_id}": "/repo/commit/main@",
    "/{repository}/tree/{ref}": "/repo/tree/main",
    "/{repository}/object/{ref}": "/repo/object/main?path=f05",
    "/{repository}/uncommitted/{ref}": "/repo/uncommitted/main",
    "/{repository}/blame/{ref}": "/repo/blame/main",
    "/{repository}/versions/{ref}": "/repo/versions/main?path=f05",
    "/{repository}/change": "/repo/change?before=main~1&after=main&path=f05",
    "/{repository}/diff": "/repo/diff?left=main~3&right=main@&two_way=true",
    "/{repository}/gc": "/repo/gc",
    "/{repository}/mirror": "/repo/mirror",
    "/{repository}/integrity": "/repo/integrity",
    "/{repository}/moves": "/repo/moves",
    "/{repository}/audit": "/repo/audit",
}
