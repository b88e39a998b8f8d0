"""Whether the API types read the descriptions of their fields, which are the docstrings below them, from the source.

CRDs, the API reference and the read API's document contain them. The command line has no use for them, and reading
them takes a fifth of the time that the types take to import: `muster.cli` switches them off before that.
"""

from __future__ import annotations

wanted = True
