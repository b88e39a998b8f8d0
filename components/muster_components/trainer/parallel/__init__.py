"""Distribution of a model over ranks: sharding, replication, compilation."""
