"""Tables of one trace's device work, as `muster trace table` shows them."""
