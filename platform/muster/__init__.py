"""Launch, queue and observe PyTorch training: every pod of a job starts together, or none does."""
