"""The curves of docs/recipes.md: measured, drawn and put on their page."""
