"""Usage over time: what jobs were charged for, as exact sums by hour, queue, namespace, user, flavor and resource.

The engine writes segments into the status of a job, in the same write as the admission, resize or release that begins
or ends them (`segments`). A durable record counts the segments that have ended, each once: a segment is identified by
the job's uid and its number, so that repeating after a crash changes nothing (`record`, for Kubernetes; SQLite on one
host is in `muster.local`). Answers add the segments that the record does not have yet, and those that have not ended
(`report`). Pure.
"""
