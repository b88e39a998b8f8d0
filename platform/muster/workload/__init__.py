"""What queues for capacity, whatever its API object, and how: pure functions of a workload, its pods and the time.

`protocol` is what a kind provides; `transitions` the changes of a status that queueing makes; `conditions` and
`placement` what a status says.
"""
