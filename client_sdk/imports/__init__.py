"""How packages are imported: public names on first use, and an error where a user's file hides a package of ours."""
