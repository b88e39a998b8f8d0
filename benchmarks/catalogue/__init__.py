"""A catalogue of recordings with known causes: programs that are not Muster's, planted faults, and a score."""
