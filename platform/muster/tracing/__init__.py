"""Traces: collect them beside the job, read them fast, say across ranks where the time went.

`collector` is the sidecar process; `report.build` turns a run folder, or any folder of torch.profiler traces, into a
`Report`; `html` and `terminal` show one. Everything between (`spans`, `work`, `temporal`, `overlap`, ...) is pure.
Nothing is imported here: the collector must stay small beside the job it serves.
"""
