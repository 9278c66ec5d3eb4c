"""The coordinator over HTTP, as devices, operators and evaluators reach it: connections, retries, downloads."""
