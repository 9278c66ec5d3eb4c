"""The coordinator's commands: ``quorate serve``, and what operators say to a running coordinator over HTTP."""
