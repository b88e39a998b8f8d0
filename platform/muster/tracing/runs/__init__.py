"""What a run folder and its store hold (docs/run-folder.md): their names, readers and downloads."""
