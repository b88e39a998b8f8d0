"""The read API: one set of JSON routes that the daemon of one host and the operator answer alike.

`types` are the responses, `items` builds them from an observed state and the last scheduling cycle, `requests` parses
routes and `lists` answers them page by page. Pure: clock, sockets and authorization belong to the servers.
"""
