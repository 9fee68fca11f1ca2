"""Scripts that call the training of another library, unchanged: run up to that call, and trained here."""
