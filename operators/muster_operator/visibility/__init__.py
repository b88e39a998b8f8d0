"""The read API as an aggregated API of the cluster: TLS, authentication by the API server's proxy, authorization."""
