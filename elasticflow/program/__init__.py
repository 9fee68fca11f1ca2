"""What a user wrote: loaded, and copied into the run."""
