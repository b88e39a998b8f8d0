"""Access to the Kubernetes API: configuration, requests and errors, typed objects, and two clients over them.

`sync_client` serves the command line and TorchX with the standard library. `async_client`, `reflector`, `lease` and
`outages` serve the operator, and only it imports them: they need aiohttp.
"""
