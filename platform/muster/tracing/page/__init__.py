"""The report as an HTML page: charts, sections, templates, and the server that hands it to a browser."""
