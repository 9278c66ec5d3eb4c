"""How packages are imported: public names when they are first used, and nothing of the user's in place of ours."""
