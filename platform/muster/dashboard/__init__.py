"""`muster dashboard`: pages over the read API, rendered on this host and served to the user's own browser.

`reader` asks the cluster through the command's client, `pages` has a module for each page (its data and a template of
the same name), `render` makes HTML of them, `live` sends what changed, `server` is the HTTP server.
"""
