"""The cluster that is this host: a daemon, its database, and a shim beside every replica."""
