"""Traces: collect them next to the job, analyse them across ranks, report where the time went.

`collector` is the sidecar process. `report.build` turns a run folder, or any folder of torch.profiler traces, into a
`Report`; `html` and `terminal_report` render it. The analysis between them (`spans`, `time_breakdown`,
`hta_breakdown`, ...) does no I/O. This module imports nothing, to keep the memory of the collector small.
"""
