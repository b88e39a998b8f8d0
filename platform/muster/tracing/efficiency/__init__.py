"""How well operators use the device: their FLOP/s and bytes per second, by shape, beside its limits."""
