"""What people look at: pages that read the HTTP API and its event stream, and nothing else."""
