"""Objects that a controller of their own runs, and that `suspend` holds: batch/v1 Job, and users' own kinds.

They queue unchanged. While suspended such an object waits; admitted, it is resumed with its pods pinned to their nodes;
evicted, it is suspended until no pod is left. A kind is one row of `table`.
"""
