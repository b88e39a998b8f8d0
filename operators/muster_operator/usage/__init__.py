"""The durable record of usage over time (`muster.usage`) in ConfigMaps of the operator's namespace."""
