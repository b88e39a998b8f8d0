"""The lifecycle of a TrainingJob, from its first submission to its removal.

Pure: from a job, its observation and the time to its next status and writes. Every cluster shares it, so that a job
behaves the same on this host, in a simulation and on Kubernetes. `muster.workload.reconcile` has the steps, `attempt`
whether the present attempt has ended and how, `adapter` the job as a workload.
"""
