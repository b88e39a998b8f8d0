"""The dashboard: pages over the read API, rendered by the server.

`reader` asks the cluster through a client with the user's login, `pages` has a module for each page (its data and a
template of the same name), `render` makes HTML of them, `live` sends what changed, `user_pages` joins these for one
user. Two HTTP servers answer with them: `server` the user's own browser on this host (`muster dashboard`), `service`
the users of a cluster by their tokens (`python -m muster.dashboard`).
"""
