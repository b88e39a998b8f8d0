"""What a run folder and its store hold (docs/reference/run-folder.md): their names, readers and downloads."""
