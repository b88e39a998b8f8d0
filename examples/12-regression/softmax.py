"""A benchmark without dependencies: the softmax of a list, of which VERSION selects the implementation."""

import json
import math
import os
import random
import time


def two_passes(values):
    """Exponentials once, then their sum."""
    powers = [math.exp(value) for value in values]
    total = sum(powers)
    return [power / total for power in powers]


def recomputed(values):
    """The same, with a logarithm and an exponential for each quotient: more than twice the time."""
    total = sum(math.exp(value) for value in values)
    return [math.exp(value - math.log(total)) for value in values]


softmax = {"two-passes": two_passes, "recomputed": recomputed}[os.environ.get("VERSION", "two-passes")]
rng = random.Random(0)
values = [rng.uniform(-1, 1) for _ in range(int(os.environ["SIZE"]))]
with open(os.environ["MUSTER_BENCH_FILE"], "w") as file:
    for _ in range(30):
        wall, cpu = time.perf_counter(), time.process_time()
        softmax(values)
        line = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        file.write(json.dumps(line) + "\n")
