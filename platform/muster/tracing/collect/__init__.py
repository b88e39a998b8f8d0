"""The parts of the collector: it checks, compresses and uploads traces, and answers the operator's requests."""
