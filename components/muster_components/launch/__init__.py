"""The container's entrypoint: starts the ranks of one pod, as torchrun does, and exits with the first failure's code.

`python -m muster_components.launch --nproc N -- SCRIPT args` with the environment of docs/reference/run-folder.md.
Why not torchrun itself: docs/decisions/0019-launcher.md.
"""
