"""The container's entrypoint: starts the ranks of one pod, as torchrun does, and ends with the exit code that tells.

`python -m muster_components.launch --nproc N -- SCRIPT args` in the environment that docs/run-folder.md promises.
Why not torchrun itself: docs/decisions/0019-launcher.md.
"""
